"""The cache of compiled kernels: in this process, then on disk; missing kernels are compiled.

A kernel is compiled once, by the first thread that needs it, in a unit with other missing ones.
Its machine code is stored for other processes.  A subclass compiles and loads units for a compiler.
"""

from __future__ import annotations

import functools
import heapq
import logging
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from minigraph import options as settings
from minigraph.cache import Entry, Store, environment_of, open_store
from minigraph.cache.counters import kernel_counters
from minigraph.errors import DeviceError, warn_once
from minigraph.jit.source import KernelSource
from minigraph.platform import forks, trust
from minigraph.platform.records import encode

log = logging.getLogger(__name__)

# Errors of loading a unit that is not machine code, does not run here, or lacks a kernel.
LOAD_ERRORS = (OSError, AttributeError, DeviceError)


@dataclass(frozen=True)
class CompilationUnit:
    """Kernels that one run of a compiler compiles together."""

    sources: tuple[KernelSource, ...]

    @property
    def kernels(self) -> list[str]:
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

    min_unit_length  characters of kernels that take as long to compile as the compiler to start
    """

    min_unit_length: int

    def __init__(self) -> None:
        self._functions: dict[str, int] = {}  # by name
        # Kernels that a thread is loading or compiling.  Other threads wait for its future, except
        # in a forked child, where that thread does not exist.
        self._pending: dict[str, Future[int]] = {}
        self._lock = forks.lock()
        os.register_at_fork(after_in_child=self._pending.clear)

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Return the environment of machine code: compiler, flags, processor, and so on."""

    @abstractmethod
    def compile(self, units: Sequence[CompilationUnit]) -> Iterator[CompiledUnit]:
        """Compile units and load their functions."""

    @abstractmethod
    def load(self, binary: bytes, kernels: Sequence[str]) -> Sequence[int]:
        """Return functions of a unit; raises one of LOAD_ERRORS."""

    @abstractmethod
    def refuse(self, error: str) -> None:
        """Report that kernels cannot be compiled; if this raises, the next caller tries again."""

    def functions(self, sources: Sequence[KernelSource], on_disk: bool = True) -> dict[str, int]:
        """Return the function of each kernel by name, 0 if it cannot be compiled.

        on_disk  whether kernels may be read from and kept on disk
        """
        by_name = {source.name: source for source in sources}
        with self._lock:
            ready = {name: f for name in by_name if (f := self._functions.get(name)) is not None}
            awaited = {name: self._pending[name] for name in by_name if name in self._pending}
            missing = {n: s for n, s in by_name.items() if n not in ready and n not in awaited}
            futures: dict[str, Future[int]] = {name: Future() for name in missing}
            self._pending.update(futures)
        kernel_counters.count("memory_hits", len(by_name) - len(missing))
        try:
            for name, function in self._load_or_compile(missing, on_disk):
                with self._lock:
                    ready[name] = self._functions[name] = function
                    self._pending.pop(name, None)
                futures.pop(name).set_result(function)
        finally:  # after an interrupt the next caller continues
            with self._lock:
                for name in futures:
                    self._pending.pop(name, None)
            for future in futures.values():
                future.cancel()
        try:
            ready.update((name, future.result()) for name, future in awaited.items())
        except CancelledError:  # another thread was interrupted
            return self.functions(sources, on_disk)
        return {name: ready[name] for name in by_name}

    def entry(self, source: KernelSource, binary: bytes = b"") -> Entry:
        """Return a kernel as the cache keeps it, with the machine code of its unit."""
        environment = environment_of(self.environment())
        return Entry("jit", source.name, environment, encode(source.digests), binary)

    def stored(self, sources: Sequence[KernelSource]) -> list[Entry]:
        """Return the entries of the kernels that this process or the disk has kept."""
        expected = [self.entry(source) for source in sources]
        store = _store()
        on_disk = store.find(expected) if store else [None] * len(expected)
        entries = [_unstored.get(w.key, entry) for w, entry in zip(expected, on_disk, strict=True)]
        # Kernels with the same short name differ in their digests.
        return [e for e, w in zip(entries, expected, strict=True) if e and e.body == w.body]

    # ------------------------------------------------------------ where functions come from

    def _load_or_compile(
        self, missing: Mapping[str, KernelSource], on_disk: bool
    ) -> Iterator[tuple[str, int]]:
        """Yield the name and the function of each kernel: from disk, or compiled."""
        remaining = dict(missing)
        if on_disk and not settings.jit_keep_interm():
            for name, function in self._load_stored(missing):
                del remaining[name]
                yield name, function
        if remaining:
            yield from self._compile_missing(remaining, on_disk)

    def _load_stored(self, missing: Mapping[str, KernelSource]) -> Iterator[tuple[str, int]]:
        units: dict[bytes, list[Entry]] = defaultdict(list)
        for entry in self.stored([*missing.values()]):
            units[entry.blob].append(entry)
        for binary, entries in units.items():
            names = [entry.subject for entry in entries]
            try:
                functions = self.load(binary, names)
            except LOAD_ERRORS:
                continue
            kernel_counters.count("disk_hits", len(names))
            kernel_counters.count("loads", len(names))
            yield from zip(names, functions, strict=True)
            log.debug("%d kernels from the cache folder", len(names))

    def _compile_missing(
        self, missing: Mapping[str, KernelSource], on_disk: bool
    ) -> Iterator[tuple[str, int]]:
        """Yield the name and the function of each kernel, 0 if it failed; keep the binaries."""
        remaining = dict(missing)
        errors: list[str] = []
        start = time.perf_counter()
        units = split(list(missing.values()), settings.cpus(), self.min_unit_length)
        try:
            while units:
                suspects: list[KernelSource] = []
                for unit, binary, functions, error in self.compile(units):
                    if not error:
                        names = unit.kernels
                        kernel_counters.count("compilations", len(names))
                        kernel_counters.count("loads", len(names))
                        for name in names:
                            del remaining[name]
                        yield from zip(names, functions, strict=True)
                        if on_disk:
                            keep_kernels([self.entry(source, binary) for source in unit.sources])
                    elif len(unit.sources) > 1:
                        suspects += unit.sources
                    else:
                        errors.append(error)
                # Compiled one by one, all kernels without errors succeed.
                units = [CompilationUnit((source,)) for source in suspects]
        except OSError as error:  # no folder to work in
            errors.append(str(error))
        log.info("compiled %d kernels in %.2f s", len(missing), time.perf_counter() - start)
        if errors:
            self.refuse(errors[0])
        yield from dict.fromkeys(remaining, 0).items()


def keep_kernels(entries: Sequence[Entry], replace: bool = True) -> None:
    """Store kernels on disk, or in this process if that fails.

    replace  whether to replace stored entries of the same kernels
    """
    store = _store()
    if not (store and store.keep(entries, lambda old, new: new if replace else old)):
        _unstored.update((entry.key, entry) for entry in entries)


def _store() -> Store | None:
    folder = settings.cache_folder()
    return open_store(folder) if folder else None


_unstored: dict[str, Entry] = {}  # kernels that the disk did not take, by key


def split(
    sources: Sequence[KernelSource], max_units: int, min_length: int
) -> list[CompilationUnit]:
    """Divide sources into units of about equal length, each worth a run of the compiler."""
    length = {source: len(source.text) + sum(map(len, source.support)) for source in sources}
    parts = max(min(max_units, len(sources), sum(length.values()) // min_length), 1)
    bins: list[tuple[int, int, list[KernelSource]]] = [(0, i, []) for i in range(parts)]
    for source in sorted(sources, key=length.__getitem__, reverse=True):
        size, i, content = bins[0]
        content.append(source)
        heapq.heapreplace(bins, (size + length[source], i, content))
    return [CompilationUnit(tuple(content)) for _, _, content in bins]


# ---------------------------------------------------------------- folders

PREFIX = "minigraph-jit-"  # of the names of temporary folders
TEMPORARY_FOLDERS = ("/tmp", "/var/tmp")  # used if other users can change TMPDIR


@contextmanager
def working_folder() -> Iterator[Path]:
    """Yield a folder for sources and objects; remove them afterwards unless the user keeps them."""
    root, keeps = _workdir(), settings.jit_keep_interm()
    if keeps and root is None:
        root = _kept_folder()
    with trust.temporary_folder(root or _temporary_root(), PREFIX) as folder:
        try:
            yield folder
        finally:
            if keeps and root:
                for file in folder.iterdir():
                    file.replace(root / file.name)


@functools.cache
def _kept_folder() -> Path:
    """Return a temporary folder that is not removed, and log its path."""
    folder = Path(tempfile.mkdtemp(prefix="minigraph-kept-", dir=_temporary_root()))
    log.warning("sources and objects of kernels are in %s", folder)
    return folder


def _workdir() -> Path | None:
    """Return the user's folder for compiling, created if missing; None without a usable one."""
    root = settings.jit_workdir()
    if root:
        try:
            trust.check_folder(root, create=True, shared=True)
        except OSError as error:
            is_untrusted = isinstance(error, trust.Untrusted)
            why = f"{error.strerror}, so others could replace kernels" if is_untrusted else error
            warn_once(
                f"MINIGRAPH_JIT_WORKDIR is not used ({why}); kernels are compiled in a temporary "
                "folder"
            )
            return None
    return root


def _temporary_root() -> Path:
    """Return a folder whose entries no other user can replace; raise OSError if there is none."""
    refused: list[OSError] = []
    for root in (tempfile.gettempdir(), *TEMPORARY_FOLDERS):
        try:
            trust.check_folder(Path(root), shared=True)
            return Path(root)
        except OSError as error:
            refused.append(error)
    raise refused[0]
