"""Compiled kernels: looked for in this process, then on disk, else compiled.

What is the same for every compiler is here: a kernel is compiled once, by whichever thread asks
first, in a unit with others that are missing too, and its machine code is kept for the next
process.  A compiler is a subclass, which says how a unit is compiled and loaded.
"""

from __future__ import annotations

import atexit
import functools
import heapq
import logging
import shutil
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from minigraph import options as settings
from minigraph.cache import Binaries, Entry
from minigraph.cache.counters import kernel_counters
from minigraph.errors import DeviceError
from minigraph.jit.source import KernelSource

# What loading a unit raises if its file went, runs nowhere here, or lacks a kernel.
NOT_LOADED = (OSError, AttributeError, DeviceError)


@dataclass(frozen=True)
class CompilationUnit:
    """Kernels that one run of a compiler compiles together."""

    sources: tuple[KernelSource, ...]

    @property
    def kernels(self) -> list[str]:
        """The names of the kernels."""
        return [source.name for source in self.sources]

    def text(self, prelude: str) -> str:
        """Return the program: each function that kernels call once, and the kernels."""
        support = dict.fromkeys(part for source in self.sources for part in source.support)
        return "\n".join([prelude, *support, *(source.kernel for source in self.sources)])


class CompiledUnit(NamedTuple):
    """A unit with its machine code and its loaded functions, or with the compiler's error."""

    unit: CompilationUnit
    binary: bytes = b""
    functions: Sequence[int] = ()
    error: str = ""


class KernelCache(ABC):
    """The kernels that a compiler has compiled.

    worth_a_run  characters of kernels that take as long to compile as a run takes to begin
    """

    worth_a_run: int

    def __init__(self) -> None:
        # By name.  The thread that adds a future has to find the function; others wait for it.
        self._functions: dict[str, Future[int]] = {}
        self._lock = threading.Lock()

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Return what machine code depends on besides the text of its kernel."""

    @abstractmethod
    def compile(self, units: Sequence[CompilationUnit]) -> Iterator[CompiledUnit]:
        """Compile units and load their functions."""

    @abstractmethod
    def load_file(self, path: Path, kernels: Sequence[str]) -> Sequence[int]:
        """Return functions of the unit in a file; raises one of NOT_LOADED."""

    @abstractmethod
    def refuse(self, error: str) -> None:
        """Report that kernels cannot be compiled.  If it raises, the next caller tries again."""

    def functions(self, sources: Sequence[KernelSource], on_disk: bool = True) -> dict[str, int]:
        """Return the function of each kernel by name, 0 if it cannot be compiled.

        on_disk  whether kernels may be looked for, and kept, on disk
        """
        wanted = {source.name: source for source in sources}
        with self._lock:
            missing = {name: s for name, s in wanted.items() if name not in self._functions}
            self._functions.update((name, Future()) for name in missing)
            futures = {name: self._functions[name] for name in wanted}
        kernel_counters.count("memory_hits", len(wanted) - len(missing))
        try:
            for name, function in self._found(missing, on_disk):
                futures[name].set_result(function)
        finally:  # after an interrupt the next caller finds the rest
            undone = [name for name in missing if not futures[name].done()]
            with self._lock:
                for name in undone:
                    del self._functions[name]
            for name in undone:
                futures[name].cancel()
        try:
            return {name: future.result() for name, future in futures.items()}
        except CancelledError:  # another thread was interrupted
            return self.functions(sources, on_disk)

    def key(self, source: KernelSource) -> dict[str, str]:
        """Return all that the machine code of a kernel depends on."""
        return {**self.environment(), **source.digests}

    def export(self, sources: Sequence[KernelSource]) -> list[Entry]:
        """Return the units on disk that hold kernels."""
        keys = {source.name: self.key(source) for source in sources}
        return [entry for store in _stores() for entry in store.entries(keys)]

    # ------------------------------------------------------------ where functions come from

    def _found(
        self, missing: Mapping[str, KernelSource], on_disk: bool
    ) -> Iterator[tuple[str, int]]:
        """Yield the name and the function of each kernel: from disk, or compiled."""
        left = dict(missing)
        if on_disk and not settings.jit_keep_interm():
            for name, function in self._on_disk(missing):
                del left[name]
                yield name, function
        if left:
            yield from self._compiled(left, on_disk)

    def _on_disk(self, missing: Mapping[str, KernelSource]) -> Iterator[tuple[str, int]]:
        units: dict[Path, list[str]] = {}
        for name, source in missing.items():
            paths = (store.find(name, self.key(source)) for store in _stores())
            path = next(filter(None, paths), None)
            if path is not None:
                units.setdefault(path, []).append(name)
        for path, names in units.items():
            try:
                functions = self.load_file(path, names)
            except NOT_LOADED:
                continue
            kernel_counters.count("disk_hits", len(names))
            kernel_counters.count("loads", len(names))
            yield from zip(names, functions, strict=True)

    def _compiled(
        self, missing: Mapping[str, KernelSource], on_disk: bool
    ) -> Iterator[tuple[str, int]]:
        """Yield the name and the function of each kernel, 0 if it failed; keep the binaries."""
        left = dict(missing)
        errors: list[str] = []
        units = split(list(missing.values()), settings.cpus(), self.worth_a_run)
        try:
            while units:
                suspects: list[KernelSource] = []
                for unit, binary, functions, error in self.compile(units):
                    if not error:
                        names = unit.kernels
                        kernel_counters.count("compilations", len(names))
                        kernel_counters.count("loads", len(names))
                        for name in names:
                            del left[name]
                        yield from zip(names, functions, strict=True)
                        if on_disk:
                            self._keep(unit, binary)
                    elif len(unit.sources) > 1:
                        suspects += unit.sources
                    else:
                        errors.append(error)
                # One by one, all but the bad kernels are compiled.
                units = [CompilationUnit((source,)) for source in suspects]
        except OSError as error:  # no folder to work in
            errors.append(str(error))
        if errors:
            self.refuse(errors[0])
        yield from dict.fromkeys(left, 0).items()

    def _keep(self, unit: CompilationUnit, binary: bytes) -> None:
        keys = {source.name: self.key(source) for source in unit.sources}
        store = _store()
        if not (store and store.keep(binary, keys)):
            _private_store().keep(binary, keys)  # for a cache file


def import_kernels(entry: Entry) -> str:
    """Keep the kernels of an entry from elsewhere; return why not, or an empty string."""
    store = _store()
    return (
        store.add(entry) and _private_store().add(entry) if store else _private_store().add(entry)
    )


def split(sources: Sequence[KernelSource], at_most: int, worth_a_run: int) -> list[CompilationUnit]:
    """Return units of about equally long text, so many that each is worth a run."""
    length = {source: len(source.text) + sum(map(len, source.support)) for source in sources}
    parts = max(min(at_most, len(sources), sum(length.values()) // worth_a_run), 1)
    bins: list[tuple[int, int, list[KernelSource]]] = [(0, i, []) for i in range(parts)]
    for source in sorted(sources, key=length.__getitem__, reverse=True):
        size, i, content = bins[0]
        content.append(source)
        heapq.heapreplace(bins, (size + length[source], i, content))
    return [CompilationUnit(tuple(content)) for _, _, content in bins]


# ---------------------------------------------------------------- folders

_binaries = functools.cache(Binaries)
_private: list[Binaries] = []  # this process's own folder, once the cache folder took nothing


def _store() -> Binaries | None:
    folder = settings.cache_folder()
    return _binaries(folder) if folder else None


def _stores() -> list[Binaries]:
    return [store for store in (*_private, _store()) if store]


def _private_store() -> Binaries:
    """Return a store for this process alone, removed when it ends."""
    if not _private:
        folder = Path(tempfile.mkdtemp(prefix="minigraph-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _private.append(Binaries(folder))
    return _private[0]


@contextmanager
def working_folder() -> Iterator[Path]:
    """Give a folder for sources and objects, which are removed then, or kept if the user asked."""
    root, keep = settings.jit_workdir(), settings.jit_keep_interm()
    if keep and root is None:
        root = _kept_folder()
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
def _kept_folder() -> Path:
    """Return a temporary folder that stays, and log where it is."""
    folder = Path(tempfile.mkdtemp(prefix="minigraph-"))
    logging.getLogger("minigraph").warning("sources and objects of kernels are in %s", folder)
    return folder
