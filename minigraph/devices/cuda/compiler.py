"""Kernels for a CUDA device, compiled by NVRTC."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from minigraph import options as settings
from minigraph.devices.cuda import nvrtc
from minigraph.devices.cuda.driver import Driver
from minigraph.devices.kernel_cache import (
    CompilationUnit,
    CompiledUnit,
    KernelCache,
    working_folder,
)
from minigraph.errors import CompileError
from minigraph.jit.cuda.text import PRELUDE
from minigraph.jit.source import digest

WORTH_A_RUN = 20_000  # characters of kernels, which take longer than the start of a compilation


class NvrtcKernels(KernelCache):
    """The kernels of a device.  A text that NVRTC refuses is a CompileError."""

    worth_a_run = WORTH_A_RUN

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self.driver = driver

    def environment(self) -> Mapping[str, str]:
        return {
            "nvrtc": nvrtc.nvrtc_version(),
            "options": " ".join(nvrtc.OPTIONS),
            "arch": self.driver.arch,
            "prelude": digest(PRELUDE),
        }

    def compile(self, units: Sequence[CompilationUnit]) -> Iterator[CompiledUnit]:
        with ThreadPoolExecutor(settings.cpus()) as pool:
            yield from pool.map(self._compile_unit, units)

    def _compile_unit(self, unit: CompilationUnit) -> CompiledUnit:
        text = unit.text(PRELUDE)
        try:
            cubin = nvrtc.compile_program(text, self.driver.arch)
        except CompileError as error:
            return CompiledUnit(unit, error=str(error))
        finally:
            _keep_source(text)
        return CompiledUnit(unit, cubin, self.load(cubin, unit.kernels))

    def load(self, binary: bytes, kernels: Sequence[str]) -> list[int]:
        with self.driver.current():
            return self.driver.load(binary, kernels)

    def refuse(self, error: str) -> None:
        raise CompileError(error)


@functools.cache
def kernels_of(driver: Driver) -> NvrtcKernels:
    """Return the kernels of a device, which all its functions share."""
    return NvrtcKernels(driver)


def _keep_source(text: str) -> None:
    if settings.jit_keep_interm():
        with working_folder() as folder:
            Path(folder, f"mg_unit_{digest(text)[:16]}.cu").write_text(text)
