"""Device "cuda": which kernel computes a node, and running a program."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import cudnn
import cupy
import numpy as np

from minigraph import options
from minigraph.autotune.candidate import Run, Runner, first_allowed
from minigraph.autotune.measurement import policy_of
from minigraph.cache import Entry
from minigraph.devices import kernel_cache
from minigraph.devices.cuda import cublas, nvrtc
from minigraph.devices.cuda.calls import kernel_calls
from minigraph.devices.cuda.candidates import CudaProblems, CudaWorkbench
from minigraph.devices.cuda.collective import collective_kernel
from minigraph.devices.cuda.communicator import communicator_of
from minigraph.devices.cuda.driver import Driver, device_count, on_stream
from minigraph.devices.cuda.kernel import CudaKernel, DeviceKernel
from minigraph.devices.cuda.kernels import Exactness, cuda_kernel
from minigraph.devices.cuda.nvrtc import kernels_of
from minigraph.devices.cuda.program import CudaProgram
from minigraph.devices.cuda.staging import BatchUploader, DeviceCopy
from minigraph.devices.problem import MIN_WARNED_OPERATIONS, Arrangement, operations
from minigraph.devices.reference import NumpyKernel
from minigraph.distributed import World
from minigraph.errors import DeviceError, install_command, warn_once
from minigraph.graph import (
    DTYPES,
    FLOATS,
    Array,
    Copy,
    DType,
    Graph,
    Node,
    Shape,
    Spec,
    cast,
    input,
)
from minigraph.jit.fused import Fused
from minigraph.jit.source import KernelSource
from minigraph.ops.comparison import Isfinite, NotEqual
from minigraph.ops.elementwise import astype
from minigraph.ops.reduction import Max
from minigraph.passes.kernels.horizontal_fusion import HorizontalFusionLimits
from minigraph.platform import forks
from minigraph.platform.launcher import local_rank
from minigraph.platform.records import one_line
from minigraph.program import Backend, Choice, Executor, Kernel, Program, Tunable
from minigraph.version import __version__


def ordinal(number: int | None) -> int:
    """Return the number of a device; None stands for the default device.

    The default is the first device.  The processes that a launcher starts on a machine take the
    devices in turn, by their ranks.
    """
    if number is not None:
        return number
    rank = local_rank()
    return rank % max(1, device_count()) if rank else 0


_opening = forks.lock()


def open_device(ordinal: int) -> tuple[Driver, Any]:
    """Return a device and cuDNN's handle for it; a process opens each device once."""
    with _opening:  # the cache alone would let two threads open the device at once
        return _open_device(ordinal)


@functools.cache
def _open_device(ordinal: int) -> tuple[Driver, Any]:
    driver = Driver(ordinal)
    try:
        with driver.current():
            nvrtc.nvrtc_version()  # loads NVRTC, which cuDNN asks the loader for by name only
            cublas.handle(ordinal)
            return driver, cudnn.create_handle()
    except Exception as error:  # each library has its own error classes
        message = one_line(str(error))
        raise DeviceError(
            f"cuBLAS or cuDNN cannot be used ({message}): {install_command('cuda')} installs it"
        ) from error


class CudaBackend(Backend):
    """Device "cuda:N", opened with the values of all options.

    on_disk  whether kernels may be read from disk and stored there
    """

    # A launch takes about 2 us, in which memory at 4 TB/s delivers 8 MB: reading a larger gradient
    # again, after it has left the cache, takes longer.  512 MiB is twice the size of the gradients
    # of a ResNet-152, and little compared with the activations of a batch.
    horizontal_fusion = HorizontalFusionLimits(operand=8 << 20, waiting=512 << 20)
    saturation = 1 << 26, 1 << 13
    tuning, tunes = "cudnn", "exhaustive"

    @classmethod
    def check(cls, number: int | None) -> None:
        open_device(ordinal(number))

    def __init__(
        self,
        number: int | None,
        values: Mapping[str, Any],
        on_disk: bool = True,
        world: World | None = None,
    ) -> None:
        self.driver, self.handle = open_device(ordinal(number))
        self.device = self.driver.device
        self.compiled = kernels_of(self.driver)
        self.bulk: bool = values["bulk"]
        self.policy = policy_of(values)
        self.on_disk = on_disk
        self.timeout: float = values["distributed.timeout"]
        self.why_no_jit = ""
        if options.jit_backend() not in ("", "nvrtc"):
            self.why_no_jit = f"MINIGRAPH_JIT_BACKEND is {options.jit_backend()}"
        workbench = CudaWorkbench(self.driver, self._runner)
        exactness = Exactness(self.policy.precision == "tf32", values["graph_opt.fast_math"])
        self._problems = CudaProblems(self.handle, workbench, exactness, self.driver.ordinal)
        self.versions = {
            "gpu": self.driver.name,
            "driver": ".".join(map(str, self.driver.version)),
            "cublas": cublas.version(),
            "cudnn": str(cudnn.backend_version()),
            "nvrtc": nvrtc.nvrtc_version(),
        }
        if world:
            with self.driver.current():
                communicator_of(world, self.driver, self.timeout)

    def tunable(self, node: Node, strides: Sequence[Shape]) -> Tunable | None:
        return self._problems.tunable(node, strides)

    def kernel(self, node: Node, strides: Sequence[Shape], choice: Choice | None = None) -> Kernel:
        kernel: Kernel | None = None
        if choice:
            kernel = choice.kernel
        elif self._problems.product(node) is not None:
            # Without layouts that could be measured, take the library's first choice.
            candidates = self._problems.candidates(Arrangement(node, strides, ()))
            kernel = first_allowed(candidates, self.policy)
        with self.driver.current():
            kernel = kernel or collective_kernel(node, self.driver, self.timeout)
        kernel = kernel or cuda_kernel(node, strides, self.driver.processors)
        if kernel is not None:
            return kernel
        reason = f"no CUDA kernel of {node.op.name} fits its shapes and types"
        if operations(node) >= MIN_WARNED_OPERATIONS:
            warn_once(
                f"{reason}: NumPy computes it; report().numpy names all steps in NumPy",
                cause=f"NumPy computes {node.source.file}:{node.source.line}",
            )
        return NumpyKernel(node, reason)

    def bind(self, program: Program, arenas: Sequence[Array] = ()) -> Executor:
        functions = self._functions([step.kernel for step in program.steps])
        return CudaProgram(program, self.driver, functions, self.bulk, arenas)

    def array(self, value: Any) -> Array | None:
        """Return a value in the device's memory as an array; None for any other value.

        The array is contiguous, unless no input can have its dtype.  Our kernels copy it: CuPy
        would compile a kernel for the copy, which needs CUDA's headers.
        """
        if not isinstance(value, cupy.ndarray):
            if getattr(value, "__dlpack_device__", lambda: (0, 0))()[0] != 2:  # kDLCUDA
                return None
            value = cupy.from_dlpack(value)
        if value.flags.c_contiguous or value.dtype not in DTYPES:
            return value
        if value.data.device_id != self.driver.ordinal:
            return value.copy(order="C")  # by CuPy: kernels may not reach it
        return self._converted(value, value.dtype, False)[0]

    def cast(self, array: Array, dtype: DType) -> Array:
        if isinstance(array, np.ndarray):
            return cast(array, dtype)
        driver, safe = self.driver, np.can_cast(array.dtype, dtype)
        floats = array.dtype in FLOATS and dtype in FLOATS
        if not array.size or array.data.device_id != driver.ordinal or not (safe or floats):
            return cast(array.get(), dtype)  # integers of another dtype are rare
        converted, *flags = self._converted(array, dtype, not safe)
        lossy = np.zeros(len(flags), np.bool_)
        with driver.current():
            for flag in flags:
                stream = driver.current_stream()
                driver.download(lossy, flag.data.ptr, stream)
                driver.synchronize(stream)
        # NumPy's cast raises an error that names the value.
        return cast(array.get(), dtype) if lossy.any() else converted

    def _converted(self, array: Array, dtype: DType, checked: bool) -> list[Array]:
        """Return an array, contiguous and in a dtype.

        If `checked`, also return an array of one bool: whether a finite number became infinite.
        """
        spec, driver = Spec(array.shape, array.dtype), self.driver
        kernel = _conversion(spec, array.strides, dtype, checked, driver.processors)
        with driver.current():
            outputs = [driver.array(output) for output in kernel.node.specs]
            scratch = driver.array(Spec((kernel.scratch,), np.dtype(np.uint8)))
            self._runner(kernel)([array], outputs, scratch)
        return outputs

    def replica(self, array: Array) -> DeviceCopy:
        return DeviceCopy(Spec(array.shape, array.dtype), self.driver, array)

    def uploader(self) -> BatchUploader:
        return BatchUploader(self.driver)

    def ordered(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        is_current = stream == self.driver.current_stream()
        return contextlib.nullcontext() if is_current else on_stream(stream)

    def _functions(self, kernels: Sequence[Kernel]) -> dict[str, int]:
        return self.compiled.functions(_sources(kernels), self.on_disk)

    def _runner(self, kernel: Runner) -> Run:
        """Return a function that runs a single kernel on arrays of the device."""
        assert isinstance(kernel, DeviceKernel)
        functions, driver = self._functions([kernel]), self.driver

        def run(inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
            xs, ys = ([x.data.ptr for x in arrays] for arrays in (inputs, outputs))
            for call in kernel_calls(kernel, xs, ys, scratch.data.ptr, functions, driver):
                call(driver.current_stream())

        return run

    # ------------------------------------------------------------ caches

    def environment(self, kind: str) -> Mapping[str, str]:
        if kind == "jit":
            return self.compiled.environment()
        return {"minigraph": __version__, **self.versions} if kind == self.tuning else {}

    def kernels(self, program: Program) -> list[Entry]:
        return self.compiled.stored(_sources([step.kernel for step in program.steps]))

    def keep_kernels(self, entries: Sequence[Entry]) -> None:
        kernel_cache.keep_kernels(entries, replace=False)


@functools.lru_cache(64)
def _conversion(
    spec: Spec, strides: Shape, dtype: DType, checked: bool, processors: int
) -> CudaKernel:
    x = input("x", spec.shape, spec.dtype)
    y = Copy()(x) if dtype == spec.dtype else astype(x, dtype)
    if checked:
        overflows = Max(tuple(range(x.ndim)))(NotEqual.of(Isfinite.of(x), Isfinite.of(y)))
        y = Fused(Graph((x,), (y, overflows))).results(x)[0].inputs[0]
    kernel = cuda_kernel(y, [strides], processors)
    assert kernel is not None, "casts are generated"
    return kernel


def _sources(kernels: Sequence[Kernel]) -> list[KernelSource]:
    return [source for kernel in kernels for source in kernel.sources]
