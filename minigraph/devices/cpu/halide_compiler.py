"""Halide as a compiler: it turns sources into loaded functions, in this process without a linker.

Halide is imported when the first kernel is compiled; kernels of the cache do not need it.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from minigraph import options as settings
from minigraph.cache import Entry
from minigraph.cache.machine import processor
from minigraph.devices.cpu import compiler, elf, library, onednn
from minigraph.devices.kernel_cache import (
    CompilationUnit,
    CompiledUnit,
    KernelCache,
    working_folder,
)
from minigraph.errors import warn_once
from minigraph.jit.halide.source import FUNCTIONS, HalideSource
from minigraph.jit.source import KernelSource, digest

PIPELINE = "minigraph.jit.halide.pipeline"
# Prefixes of Halide's features that need each instruction set.
ISA_FEATURES = {
    onednn.AVX: ("avx",),
    onednn.AVX2: ("avx2", "fma", "f16c", "avxvnni", "avx512", "avx10"),
    onednn.AVX512: ("avx512", "avx10"),
}


def is_selected() -> bool:
    """Whether Halide compiles generated kernels: if the user requests it, or without a C compiler.

    Warn if Halide is requested but missing.  Then, without a C compiler, only cached kernels that
    Halide has compiled run natively.
    """
    requested, why = settings.jit_backend(), compiler.why_no_halide()
    has_c = compiler.compiler() is not None
    if requested == "halide" and why:
        instead = (
            "kernels are the C compiler's" if has_c else "kernels that no cache has are NumPy's"
        )
        warn_once(f"MINIGRAPH_JIT_BACKEND is halide, but {why}; {instead}")
    usable = requested in ("", "halide") and not (why and (has_c or not requested))
    if not usable or (has_c and not requested):
        return False
    return elf.IS_SUPPORTED and library.can_load_code()


class HalideKernels(KernelCache):
    min_unit_length = sys.maxsize  # kernels are compiled one after the other

    def environment(self) -> Mapping[str, str]:
        return {
            "compiler": "halide 21",
            "without": " ".join(compiler.excluded(ISA_FEATURES)),
            "processor": processor(),
            "pipeline": _generator_digest(),
            "functions": digest(FUNCTIONS),
        }

    def compile(self, units: Sequence[CompilationUnit]) -> Iterator[CompiledUnit]:
        without, debug = compiler.excluded(ISA_FEATURES), settings.halide_debug()
        with working_folder() as folder:
            for source in (source for unit in units for source in unit.sources):
                unit = CompilationUnit((source,))
                try:
                    pipeline = importlib.import_module(PIPELINE)  # fails without Halide
                    code = pipeline.compile_kernel(source, folder, without, debug)
                    yield CompiledUnit(unit, code, self.load(code, unit.kernels))
                except (RuntimeError, LookupError, OSError, AttributeError, ImportError) as error:
                    yield CompiledUnit(unit, error=f"{type(error).__name__}: {error}")

    def load(self, binary: bytes, kernels: Sequence[str]) -> list[int]:
        addresses = elf.load(binary)
        try:
            return [addresses[f"{name}_argv"] for name in kernels]
        except KeyError as missing:
            raise OSError(f"the object file lacks {missing}") from None

    def refuse(self, error: str) -> None:
        warn_once(f"Halide could not compile kernels ({error.splitlines()[0]}); NumPy runs them")


@functools.cache
def _generator_digest() -> str:
    """Return a digest of the code that makes pipelines."""
    folder = Path(__file__).parents[2] / "jit" / "halide"
    return digest(*(path.read_text() for path in sorted(folder.glob("*.py"))))


KERNELS = HalideKernels()


def functions(sources: Sequence[KernelSource], on_disk: bool) -> dict[str, int]:
    """Return the function of each kernel by name, compiled by Halide or the C compiler."""
    halide, c_sources = _by_compiler(sources)
    return {**compiler.KERNELS.functions(c_sources, on_disk), **KERNELS.functions(halide, on_disk)}


def stored(sources: Sequence[KernelSource]) -> list[Entry]:
    """Return the entries of the kernels that this process or the disk has kept."""
    halide, c_sources = _by_compiler(sources)
    return [*compiler.KERNELS.stored(c_sources), *KERNELS.stored(halide)]


def _by_compiler(sources: Sequence[KernelSource]) -> tuple[list[KernelSource], list[KernelSource]]:
    halide: list[KernelSource] = [source for source in sources if isinstance(source, HalideSource)]
    return halide, [source for source in sources if not isinstance(source, HalideSource)]
