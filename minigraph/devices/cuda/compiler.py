"""Kernels for a CUDA device: looked for in this process, then on disk, else compiled by NVRTC."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from minigraph import options as settings
from minigraph.cache import Binaries, Entry
from minigraph.cache.counters import kernel_counters
from minigraph.devices.cuda import nvrtc
from minigraph.devices.cuda.driver import Driver
from minigraph.devices.cuda.launch import program
from minigraph.jit.cuda.prelude import PRELUDE
from minigraph.jit.source import KernelSource, digest

WORTH_A_RUN = 20_000  # characters of kernels, which take longer than the start of a compilation

_functions: dict[tuple[str, str], int] = {}  # by device and name
_lock = threading.Lock()
_stores = functools.cache(Binaries)


def environment(arch: str) -> dict[str, str]:
    """Return what machine code depends on besides the text of its kernel."""
    return {
        "nvrtc": nvrtc.version(),
        "options": " ".join(nvrtc.OPTIONS),
        "arch": arch,
        "prelude": digest(PRELUDE),
    }


def load(sources: Sequence[KernelSource], driver: Driver, on_disk: bool) -> dict[str, int]:
    """Return the functions of kernels by name, loaded on a device.

    on_disk  whether kernels may be looked for, and kept, on disk

    Raises CompileError for a text that NVRTC refuses.
    """
    wanted = {source.name: source for source in sources}
    with _lock:
        missing = {n: s for n, s in wanted.items() if (driver.device, n) not in _functions}
        kernel_counters.count("memory_hits", len(wanted) - len(missing))
        for names, cubin in _found(missing, driver.arch, on_disk):
            with driver.current():
                loaded = driver.load(cubin, names)
            kernel_counters.count("loads", len(names))
            keys = ((driver.device, name) for name in names)
            _functions.update(zip(keys, loaded, strict=True))
        return {name: _functions[driver.device, name] for name in wanted}


def _found(
    missing: Mapping[str, KernelSource], arch: str, on_disk: bool
) -> Iterator[tuple[list[str], bytes]]:
    """Yield machine code with the names of the kernels to take from it."""
    store = _store() if on_disk else None
    left = dict(missing)
    if store:
        there: dict[bytes, list[str]] = {}
        for name, source in missing.items():
            cubin = store.code(name, _key(source, arch))
            if cubin is not None:
                there.setdefault(cubin, []).append(name)
                del left[name]
        for cubin, names in there.items():
            kernel_counters.count("disk_hits", len(names))
            yield names, cubin
    units = _split(list(left.values()))
    with ThreadPoolExecutor(settings.cpus()) as pool:
        compiled = pool.map(lambda unit: nvrtc.compile(program(unit), arch), units)
        for unit, cubin in zip(units, compiled, strict=True):
            kernel_counters.count("compilations", len(unit))
            if store:
                store.keep(cubin, {s.name: _key(s, arch) for s in unit})
            yield [s.name for s in unit], cubin


def _split(sources: Sequence[KernelSource]) -> list[list[KernelSource]]:
    """Return sources in about equally long programs, as many as are worth compiling at once."""
    length = sum(len(source.text) for source in sources)
    parts = max(1, min(settings.cpus(), length // WORTH_A_RUN))
    found: list[list[KernelSource]] = [[] for _ in range(parts)]
    for i, source in enumerate(sorted(sources, key=lambda s: -len(s.text))):
        found[i % parts].append(source)
    return [unit for unit in found if unit]


def export_kernels(sources: Sequence[KernelSource], arch: str) -> list[Entry]:
    """Return the units on disk that hold kernels."""
    store = _store()
    return store.entries({s.name: _key(s, arch) for s in sources}) if store else []


def import_kernels(entry: Entry) -> str:
    """Keep the kernels of an entry from elsewhere; return why not, or an empty string."""
    store = _store()
    return store.add(entry) if store else "there is no cache folder"


def _store() -> Binaries | None:
    folder = settings.cache_folder()
    return _stores(folder) if folder else None


def _key(source: KernelSource, arch: str) -> dict[str, str]:
    return {**environment(arch), **source.digests}
