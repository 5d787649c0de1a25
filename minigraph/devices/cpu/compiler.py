"""The system's C compiler: text in, loaded functions out.

A kernel is looked for in this process, then on disk.  Those found nowhere are compiled together,
shared among as many runs of the compiler as there are CPUs.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import heapq
import logging
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from minigraph import options as settings
from minigraph.cache import Binaries, Entry
from minigraph.cache.counters import kernel_counters
from minigraph.cache.machine import processor
from minigraph.devices.cpu import openmp, processes
from minigraph.errors import warn_once
from minigraph.jit.c.prelude import PRELUDE, vector_math
from minigraph.jit.source import KernelSource, digest

FLAGS = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",  # integers wrap around, as NumPy's do
    "-ffp-contract=off",  # a product is fused with a sum only where the graph says fma
    "-fopenmp",
    "-fPIC",
    "-shared",
    "-Werror=vla",  # no shape decides how much of a stack a kernel takes
)
SECONDS = 120.0  # that one run of the compiler may take
WORTH_A_RUN = 4000  # characters of kernels, which take as long as the headers of a unit


# ---------------------------------------------------------------- the compiler


@functools.cache
def compiler() -> str | None:
    """Return the path of the C compiler, or None, with one warning, where there is none."""
    found = shutil.which(settings.c_compiler()) or shutil.which("gcc")
    if found is None:
        warn_once(
            "no C compiler was found; elementwise ops and reductions run in NumPy, several times "
            "slower: install gcc (Debian: apt-get install gcc libc6-dev)"
        )
    return found


@functools.cache
def version() -> str:
    """Return the first line of what the compiler says of itself, or "none"."""
    path = compiler()
    if path is None:
        return "none"
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):  # found, but nothing that runs
        return "unknown"
    return (done.stdout.splitlines() or ["unknown"])[0]


def _libraries() -> list[str]:
    return ["-lmvec", "-lm"] if vector_math() else ["-lm"]


@functools.cache
def toolchain() -> Mapping[str, str]:
    """Return what machine code depends on besides the text of its kernel."""
    return {
        "compiler": compiler() or "none",
        "version": version(),
        "flags": " ".join([*FLAGS, *_libraries()]),
        "processor": processor(),  # -march=native
        "prelude": digest(PRELUDE),
        "vector math": digest(vector_math()),
    }


def _key(source: KernelSource) -> dict[str, str]:
    """Return all that a kernel's machine code depends on."""
    return {**toolchain(), **source.digests}


# ---------------------------------------------------------------- looking for kernels

# By name, the address of a function, once it is known; 0 where the compiler failed.  Who puts a
# future here has to find the function; the others wait for it.
_addresses: dict[str, Future[int]] = {}
_lock = threading.Lock()
_loaded: dict[Path, ctypes.CDLL] = {}  # never unloaded: functions point into them


def load(sources: Sequence[KernelSource], on_disk: bool = True) -> list[int]:
    """Return the address of each kernel, 0 where it could not be compiled.

    on_disk  whether kernels may be looked for, and kept, on disk
    """
    wanted = {source.name: source for source in sources}
    with _lock:
        missing = {name: s for name, s in wanted.items() if name not in _addresses}
        _addresses.update((name, Future()) for name in missing)
        futures = {name: _addresses[name] for name in wanted}
    kernel_counters.count("memory_hits", len(wanted) - len(missing))
    try:
        for name, address in _find(missing, on_disk):
            futures[name].set_result(address)
    finally:  # an interrupt leaves the rest to whoever asks next
        undone = [name for name in missing if not futures[name].done()]
        with _lock:
            for name in undone:
                del _addresses[name]
        for name in undone:
            futures[name].cancel()
    try:
        return [futures[source.name].result() for source in sources]
    except CancelledError:  # another thread was interrupted
        return load(sources, on_disk)


def _find(missing: Mapping[str, KernelSource], on_disk: bool) -> Iterator[tuple[str, int]]:
    """Yield the name and the address of each kernel: from disk, or compiled."""
    if compiler() is None or not missing:
        yield from dict.fromkeys(missing, 0).items()
        return
    store = _store() if on_disk else None
    left = dict(missing)
    if on_disk and not settings.jit_keep_interm():
        for name, source in missing.items():
            paths = (known.find(name, _key(source)) for known in (*_temporary, store) if known)
            path = next(filter(None, paths), None)
            if path is None:
                continue
            try:
                address = _function(path, name)
            except (OSError, AttributeError):  # removed since, or a disk that runs no code
                continue
            del left[name]
            kernel_counters.count("disk_hits")
            kernel_counters.count("loads")
            yield name, address
    if left:
        yield from _compile(list(left.values()), store, on_disk)


def _store() -> Binaries | None:
    folder = settings.cache_folder()
    return _binaries(folder) if folder else None


_binaries = functools.cache(Binaries)
_temporary: list[Binaries] = []  # of this process alone, where the cache folder takes nothing


def import_kernels(entry: Entry) -> str:
    """Keep the kernels of an entry from elsewhere; return why not, or an empty string."""
    store = _store()
    return store.add(entry) and _alone().add(entry) if store else _alone().add(entry)


def _alone() -> Binaries:
    """Return a store for this process alone, which goes when it ends."""
    if not _temporary:
        folder = Path(tempfile.mkdtemp(prefix="minigraph-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _temporary.append(Binaries(folder))
    return _temporary[0]


def export_kernels(sources: Sequence[KernelSource]) -> list[Entry]:
    """Return the units on disk that hold kernels."""
    stores = (*_temporary, _store())
    keys = {source.name: _key(source) for source in sources}
    return [entry for store in stores if store for entry in store.entries(keys)]


def _function(path: Path, name: str) -> int:
    """Return the address of a function in a shared object; OSError, AttributeError if it fails."""
    with suppress(OSError):  # another compiler's kernels need another OpenMP
        openmp.library()  # before the kernels load it
    library = _loaded.get(path) or _loaded.setdefault(path, ctypes.CDLL(str(path)))
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


# ---------------------------------------------------------------- compiling


@dataclass(frozen=True)
class Unit:
    """Kernels that are compiled by one run of the compiler to one shared object."""

    sources: tuple[KernelSource, ...]

    @functools.cached_property
    def text(self) -> str:
        support = dict.fromkeys(part for s in self.sources for part in s.support)
        bodies = [s.kernel for s in self.sources]
        return "\n".join([PRELUDE, vector_math(), *support, *bodies])

    @functools.cached_property
    def name(self) -> str:
        return f"mg_unit_{digest(self.text)[:16]}"


def split(sources: Sequence[KernelSource], at_most: int) -> list[Unit]:
    """Return units of about equally long text, so many that each is worth a run."""
    length = {source: len(source.text) + sum(map(len, source.support)) for source in sources}
    parts = max(min(at_most, len(sources), sum(length.values()) // WORTH_A_RUN), 1)
    bins: list[tuple[int, int, list[KernelSource]]] = [(0, i, []) for i in range(parts)]
    for source in sorted(sources, key=length.__getitem__, reverse=True):
        size, i, content = bins[0]
        content.append(source)
        heapq.heapreplace(bins, (size + length[source], i, content))
    return [Unit(tuple(content)) for _, _, content in bins]


def _compile(
    sources: Sequence[KernelSource], store: Binaries | None, on_disk: bool
) -> Iterator[tuple[str, int]]:
    """Yield the name and the address of each kernel, 0 where it failed; keep the binaries."""
    left = dict.fromkeys(source.name for source in sources)
    failures: list[str] = []
    try:
        with _workplace() as folder:
            units = split(sources, settings.cpus())
            while units:
                suspects: list[KernelSource] = []
                for unit, addresses, said in _build(units, folder):
                    if not said:
                        for name, address in addresses.items():
                            del left[name]
                            yield name, address
                        if on_disk:
                            binary = Path(folder, f"{unit.name}.so").read_bytes()
                            keys = {s.name: _key(s) for s in unit.sources}
                            if not (store and store.keep(binary, keys)):
                                _alone().keep(binary, keys)  # for a cache file
                    elif len(unit.sources) > 1:
                        suspects += unit.sources
                    else:
                        failures.append(said)
                # Alone, all but the bad ones are compiled.
                units = [Unit((source,)) for source in suspects]
    except OSError as error:  # no folder to work in
        failures.append(str(error))
    yield from ((name, 0) for name in left)
    if failures:
        lines = failures[0].splitlines()
        first = next((line for line in lines if "error" in line), failures[0][:200])
        warn_once(f"{compiler()} could not compile kernels ({first}); NumPy runs them instead")


def _build(units: Sequence[Unit], folder: Path) -> Iterator[tuple[Unit, dict[str, int], str]]:
    """Yield each unit with the addresses of its kernels, or with what its failure was."""
    commands: dict[str, list[str]] = {}
    for unit in units:
        Path(folder, f"{unit.name}.c").write_text(unit.text)
        # Relative names, so that messages and objects are the same in every folder.
        files = [f"{unit.name}.c", "-o", f"{unit.name}.so"]
        commands[unit.name] = [str(compiler()), *FLAGS, *files, *_libraries()]
    failed = processes.run(commands, folder, settings.cpus(), SECONDS)
    for unit in units:
        said = failed[unit.name]
        addresses: dict[str, int] = {}
        if not said:
            try:
                path = folder / f"{unit.name}.so"
                addresses = {s.name: _function(path, s.name) for s in unit.sources}
            except (OSError, AttributeError) as error:
                said = str(error)
            else:
                kernel_counters.count("compilations", len(addresses))
                kernel_counters.count("loads", len(addresses))
        yield unit, addresses, said


@contextmanager
def _workplace() -> Iterator[Path]:
    """Give a folder for sources and objects, which then go, or are kept if the user asked."""
    root, keep = settings.jit_workdir(), settings.jit_keep_interm()
    if keep and root is None:
        root = _kept()
    if root:
        root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory("", "minigraph-", root, ignore_cleanup_errors=True) as made:
        try:
            yield Path(made)
        finally:
            if keep and root:
                for file in Path(made).iterdir():
                    file.replace(root / file.name)


@functools.cache
def _kept() -> Path:
    """Return a temporary folder that stays, and tell where it is."""
    folder = Path(tempfile.mkdtemp(prefix="minigraph-"))
    logging.getLogger("minigraph").warning("sources and objects of kernels are in %s", folder)
    return folder
