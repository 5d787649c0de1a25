"""Device "cuda": which kernel computes a node, and running a program."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import cudnn
import cupy

from minigraph import options
from minigraph.autotune.candidate import Run, Runner
from minigraph.autotune.policy import Policy, first_allowed
from minigraph.cache import Entry
from minigraph.devices.cuda import cudnn_kernel, nvrtc
from minigraph.devices.cuda.candidates import CudaProblems
from minigraph.devices.cuda.collective import collective_kernel
from minigraph.devices.cuda.communicator import connected
from minigraph.devices.cuda.compiler import kernels_of
from minigraph.devices.cuda.cudnn_kernel import CudnnKernel, Exactness
from minigraph.devices.cuda.driver import Arguments, DeviceMemory, Driver, device_count
from minigraph.devices.cuda.kernel import CudaKernel, LibraryKernel, cuda_kernel
from minigraph.devices.cuda.program import CudaProgram
from minigraph.devices.cuda.step import run_alone
from minigraph.devices.cuda.workbench import CudaWorkbench
from minigraph.devices.kernel_cache import import_kernels
from minigraph.devices.problem import Arrangement
from minigraph.devices.reference import NumpyKernel
from minigraph.distributed import World
from minigraph.errors import DeviceError
from minigraph.graph import Array, DType, Node, Shape
from minigraph.graph import cast as cast_array
from minigraph.jit.source import KernelSource
from minigraph.passes.kernels.gathering import Gathering
from minigraph.platform import forks
from minigraph.program import (
    NOTHING_AHEAD,
    Ahead,
    Choice,
    Executor,
    Kernel,
    Memory,
    Program,
    Step,
    Tunable,
)
from minigraph.version import __version__

# A launch takes some 2 us, in which 4 TB/s bring 8 MB: a larger gradient that has left the cache
# meanwhile takes longer to come back.  512 MiB hold the gradients of a ResNet-152 twice, which is
# little beside the activations of its batches.
GATHERING = Gathering(operand=8 << 20, waiting=512 << 20)


def usual(rank: int) -> int:
    """Return the device of a process, of which this is the number on its machine."""
    return rank % max(1, device_count())


_opening = forks.lock()


def opened(ordinal: int) -> tuple[Driver, Any]:
    """Return a device, which is opened once a process, and cuDNN's handle for it."""
    with _opening:  # a cache alone would let two threads open it at once
        return _opened(ordinal)


@functools.cache
def _opened(ordinal: int) -> tuple[Driver, Any]:
    driver = Driver(ordinal)
    try:
        with driver.current():
            nvrtc.nvrtc_version()  # loads NVRTC, which cuDNN asks the loader for by name only
            return driver, cudnn.create_handle()
    except Exception as error:  # its own classes, one for each way to fail
        said = " ".join(str(error).split())
        raise DeviceError(
            f"cuDNN cannot be used ({said}): pip install 'minigraph[cuda]' brings it"
        ) from error


class CudaBackend:
    """Device "cuda:N".

    bulk       run a step as one CUDA graph, else one launch a kernel
    policy     for algorithms that were not measured
    fast_math  whether NaN may be lost
    on_disk    whether kernels may be looked for, and kept, on disk
    timeout    seconds after which waiting for other processes is an error
    """

    block = 1
    gathering = GATHERING
    products = None
    unrolls = True
    tuning = "cudnn"

    def __init__(
        self,
        ordinal: int,
        bulk: bool,
        policy: Policy,
        fast_math: bool,
        on_disk: bool,
        timeout: float,
    ) -> None:
        self.driver, self.handle = opened(ordinal)
        self.device = self.driver.device
        self.compiled = kernels_of(self.driver)
        self.bulk = bulk
        self.policy = policy
        self.on_disk = on_disk
        self.timeout = timeout
        self.why_no_jit = ""
        if options.jit_backend() not in ("", "nvrtc"):
            self.why_no_jit = f"MINIGRAPH_JIT_BACKEND is {options.jit_backend()}"
        workbench = CudaWorkbench(self.driver, self._runner)
        exactness = Exactness(policy.precision == "tf32", fast_math)
        self._problems = CudaProblems(self.handle, workbench, self.driver.current, exactness)
        self.versions: Mapping[str, str] = {
            "gpu": self.driver.name,
            "driver": ".".join(map(str, self.driver.version)),
            "cudnn": str(cudnn.backend_version()),
            "nvrtc": nvrtc.nvrtc_version(),
        }

    def why_no_amp(self, amp: str) -> str:
        return ""

    def tunable(self, node: Node, strides: Sequence[Shape]) -> Tunable | None:
        return self._problems.tunable(node, strides)

    def kernel(self, node: Node, strides: Sequence[Shape], choice: Choice | None = None) -> Kernel:
        made: Kernel | None = None
        if choice:
            made = choice.kernel
        elif cudnn_kernel.product(node) is not None:
            # It has no layouts that could be measured, so cuDNN's first choice is taken.
            offered = self._problems.candidates(Arrangement(node, strides, ()))
            made = cast(Kernel | None, first_allowed(offered, self.policy))
        with self.driver.current():
            made = made or collective_kernel(node, self.driver, self.timeout)
        return made or cuda_kernel(node, strides, self.driver.processors) or NumpyKernel(node)

    def connect(self, world: World) -> None:
        """Make collectives of a world possible; all its processes call this at the same time."""
        with self.driver.current():
            connected(world, self.driver, self.timeout)

    def ahead(self, nbytes: int) -> AbstractContextManager[Ahead]:
        return contextlib.nullcontext(NOTHING_AHEAD)  # the driver's memory is there at once

    def bind(self, program: Program, arenas: Sequence[DeviceMemory] = ()) -> Executor:
        functions = self._functions([step.kernel for step in program.steps])
        return CudaProgram(program, self.driver, functions, self.bulk, arenas)

    def run_alone(self, step: Step, memory: Memory) -> None:
        run_alone(step, memory, self._functions([step.kernel]), self.driver)

    def array(self, value: Any) -> Array | None:
        """Return an array that is in the memory of the device; None for one that is not."""
        if isinstance(value, cupy.ndarray):
            return value
        on_device = getattr(value, "__dlpack_device__", lambda: (0, 0))()[0] == 2  # kDLCUDA
        return cupy.from_dlpack(value) if on_device else None

    def cast(self, array: Array, dtype: DType) -> Array:
        return cast_array(array, dtype)

    def _functions(self, kernels: Sequence[Kernel]) -> dict[str, int]:
        return self.compiled.functions(_sources(kernels), self.on_disk)

    def _runner(self, kernel: Runner) -> Run:
        """Return what runs a kernel alone, on arrays of the device."""
        assert isinstance(kernel, CudaKernel | CudnnKernel)
        return DeviceRunner(kernel, self._functions([kernel]), self.driver)

    # ------------------------------------------------------------ caches

    def environment(self, kind: str) -> Mapping[str, str]:
        if kind == "jit":
            return self.compiled.environment()
        return {"minigraph": __version__, **self.versions} if kind == self.tuning else {}

    def loop(self, node: Node, strides: Sequence[Shape], body: Program) -> Kernel:
        raise DeviceError(f"{node!r} {node.source}: CUDA devices run no loops, which are unrolled")

    def kernels(self, program: Program) -> list[Entry]:
        return self.compiled.export(_sources([step.kernel for step in program.steps]))

    def keep_kernels(self, entry: Entry) -> str:
        return import_kernels(entry)


def _sources(kernels: Sequence[Kernel]) -> list[KernelSource]:
    """Return what is generated for kernels."""
    made = [kernel for kernel in kernels if isinstance(kernel, CudaKernel | LibraryKernel)]
    return [launch.source for kernel in made for launch in kernel.launches]


class DeviceRunner:
    """A kernel alone: called with its inputs, outputs and scratch memory, CuPy's arrays."""

    def __init__(
        self, made: CudaKernel | CudnnKernel, functions: Mapping[str, int], driver: Driver
    ) -> None:
        self._made = made
        self._functions = functions
        self._driver = driver

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        stream = self._driver.current_stream()
        given, results = ([x.data.ptr for x in arrays] for arrays in (inputs, outputs))
        if isinstance(self._made, CudnnKernel):
            self._made.enqueue(given, results, scratch.data.ptr, stream)
        for launch in self._made.launches:
            self._driver.launch(
                self._functions[launch.source.name],
                launch.grid,
                launch.block,
                stream,
                Arguments(launch.words(given, results, scratch.data.ptr)),
            )
