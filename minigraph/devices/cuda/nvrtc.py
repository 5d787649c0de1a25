"""Kernels for a CUDA device, compiled by NVRTC, which needs neither a driver nor a GPU."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cuda.bindings import nvrtc

from minigraph import options as settings
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

OPTIONS = (
    "-std=c++17",
    "--device-as-default-execution-space",  # so ops' C functions need no __device__
    "--fmad=false",  # a product is fused with a sum only where the graph says fma
    "--ftz=true",  # denormals are 0, as on the CPU
    "--prec-div=true",
    "--prec-sqrt=true",
    "--disable-warnings",  # an op's C serves all types, so it may test whether an unsigned is < 0
)
MIN_UNIT_LENGTH = 20_000  # characters: compiling them takes longer than starting a compilation
log = logging.getLogger(__name__)


def nvrtc_version() -> str:
    """Return NVRTC's version, on which machine code depends."""
    return ".".join(map(str, _checked(nvrtc.nvrtcVersion())))


def compile_program(text: str, arch: str) -> bytes:
    """Return the machine code (cubin) of a program for an architecture, such as "sm_90".

    Raises CompileError with the compiler's first error; the log gets its whole output.
    """
    (program,) = _checked(nvrtc.nvrtcCreateProgram(text.encode(), b"minigraph.cu", 0, [], []))
    try:
        options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={arch}")]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        output = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        message = output.rstrip(b"\0").decode(errors="replace").strip()
        if message:
            log.info("NVRTC, for %s:\n%s", arch, message)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            errors = (line for line in message.splitlines() if "error" in line)
            raise CompileError(f"NVRTC for {arch}: {next(errors, _name(result))}")
        return _text(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _text(program: Any, size_of: Any, get: Any) -> bytes:
    (size,) = _checked(size_of(program))
    buffer = b"\0" * size  # NVRTC writes to it in place
    _checked(get(program, buffer))
    return buffer


def _checked(results: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the results of a call of NVRTC without the status; raise unless it succeeded."""
    result, *values = results
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC: {_name(result)}")
    return tuple(values)


def _name(result: Any) -> str:
    return nvrtc.nvrtcGetErrorString(result)[1].decode()


class NvrtcKernels(KernelCache):
    """The kernels of a device.  If NVRTC rejects a text, CompileError is raised."""

    min_unit_length = MIN_UNIT_LENGTH

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self.driver = driver

    def environment(self) -> Mapping[str, str]:
        return {
            "nvrtc": nvrtc_version(),
            "options": " ".join(OPTIONS),
            "arch": self.driver.arch,
            "prelude": digest(PRELUDE),
        }

    def compile(self, units: Sequence[CompilationUnit]) -> Iterator[CompiledUnit]:
        with ThreadPoolExecutor(settings.cpus()) as pool:
            yield from pool.map(self._compile_unit, units)

    def _compile_unit(self, unit: CompilationUnit) -> CompiledUnit:
        text = unit.text(PRELUDE)
        try:
            cubin = compile_program(text, self.driver.arch)
        except CompileError as error:
            return CompiledUnit(unit, error=str(error))
        finally:
            if settings.jit_keep_interm():
                with working_folder() as folder:
                    Path(folder, f"mg_unit_{digest(text)[:16]}.cu").write_text(text)
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
