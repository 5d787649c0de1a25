"""The tuning problems of CUDA devices, their candidates, and the workbench that measures them.

Candidates are cuDNN's, cuBLAS's, and our own reorders.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import cupy
import numpy as np

from minigraph.autotune.candidate import Candidate, Run, Runner, Workbench
from minigraph.autotune.measurement import KernelRecipe
from minigraph.devices.cuda import cublas_kernel, cudnn_kernel
from minigraph.devices.cuda.calls import capture
from minigraph.devices.cuda.cudnn_plan import Catalogue
from minigraph.devices.cuda.driver import Driver, on_stream
from minigraph.devices.cuda.kernels import Exactness, cuda_kernel
from minigraph.devices.problem import (
    FEW_CHANNELS,
    Arrangement,
    Lanes,
    Layouts,
    OpProblem,
    ProblemMaker,
    Product,
)
from minigraph.errors import DeviceLost, GraphError
from minigraph.graph import Array, Node, Spec
from minigraph.ops.activation import Relu
from minigraph.ops.layout import Reorder
from minigraph.ops.matmul import Matmul
from minigraph.platform.records import one_line
from minigraph.program import Kernel

# Rough figures of an H100; only the ratio of arithmetic to memory traffic matters.
BYTES_PER_SECOND = 2.5e12
FLOPS_PER_SECOND = {"small": 4e14, "tf32": 2e14, "plain": 4e13}

# Parts of the messages of cuDNN, NVRTC and the driver for missing memory.
MEMORY_ERRORS = ("ALLOC_FAILED", "OUT_OF_MEMORY", "out of memory")
CHUNK = 1 << 28  # elements that are compared at once


class CudaProblems(ProblemMaker):
    """Makes the problems of nodes for a CUDA device.

    handle     of cuDNN
    workbench  that measures candidates
    exactness  approximations that the libraries may use
    ordinal    of the device
    """

    kind = "cudnn"

    def __init__(
        self, handle: Any, workbench: Workbench, exactness: Exactness, ordinal: int = 0
    ) -> None:
        super().__init__()
        self.catalogue = Catalogue(handle)
        self.workbench = workbench
        self.exactness = exactness
        self.ordinal = ordinal

    def product(self, node: Node) -> Product | None:
        return cudnn_kernel.product(node) or cublas_kernel.product(node)

    def note(self, node: Node) -> str:
        product = self.product(node)
        if product is None:
            return ""
        uses_tf32 = self.exactness.tf32 and node.dtype == np.float32
        ignores_nan = self.exactness.fast_math and isinstance(product.activation, Relu)
        return ", tf32" * uses_tf32 + ", no NaN" * ignores_nan

    def image_lanes(self, roles: str, channels: Sequence[int]) -> list[Lanes]:
        """Return nchw and the channels last.

        An image with few channels is copied and padded in any case, so it may also be nchw while
        the other image has the channels last.
        """
        channels_last = [1 if role == "w" else c for role, c in zip(roles, channels, strict=True)]
        image_index = roles.index("x")
        options = [[1, 1, 1], channels_last]
        if channels[image_index] <= FEW_CHANNELS:
            options.append([1 if i == image_index else n for i, n in enumerate(channels_last)])
        return [(first, second, result) for first, second, result in options]

    def reorder_lanes(self, spec: Spec) -> list[int]:
        return [1, spec.shape[1]]

    def estimate(self, problem: OpProblem, layouts: Layouts) -> float | None:
        """Return roughly the seconds of a convolution or reorder.

        Tensor cores read images with channels last.  For other layouts cuDNN transposes images and
        results inside each convolution of 16 bits or in tf32.
        """
        if isinstance(problem.op, Matmul):
            return None
        specs = (*problem.inputs, *problem.results)
        if isinstance(problem.op, Reorder):
            return 2 * specs[0].nbytes / BYTES_PER_SECOND
        is_16_bit = specs[0].dtype.itemsize < 4
        tensor_cores = is_16_bit or (self.exactness.tf32 and specs[0].dtype == np.float32)
        flops = FLOPS_PER_SECOND["small" if is_16_bit else "tf32" if tensor_cores else "plain"]
        transposed = (
            spec.nbytes
            for spec, layout in zip(specs, layouts, strict=True)
            if layout.lanes and (layout.lanes == 1) == tensor_cores
        )
        traffic = sum(spec.nbytes for spec in specs) + 2 * sum(transposed)
        return problem.work / flops + traffic / BYTES_PER_SECOND

    def candidates(self, arrangement: Arrangement) -> Iterator[Candidate]:
        if isinstance(arrangement.node.op, Reorder):
            node, strides, layouts = arrangement
            make = partial(cuda_kernel, node, strides)  # exists for each reorder from or to nchw
            yield Candidate("generated", layouts, make, precision=node.dtype.name)
            return
        if cublas_kernel.product(arrangement.node):
            candidates = cublas_kernel.candidates(arrangement, self.ordinal, self.exactness)
        else:
            candidates = cudnn_kernel.candidates(arrangement, self.catalogue, self.exactness)
        while True:
            with self.workbench.current():  # not while the caller uses the candidate
                candidate = next(candidates, None)
            if candidate is None:
                return
            yield replace(candidate, make=partial(self._make, candidate))

    def _make(self, candidate: Candidate) -> Any:
        with self.workbench.current():
            try:
                return candidate.make()
            except GraphError as error:
                # If the library lacked memory, try again: CuPy's pool has freed its unused memory.
                with contextlib.suppress(MemoryError):
                    self.workbench.reraise_device_error(error, candidate.name)
                    raise
                return candidate.make()

    def remake(self, arrangement: Arrangement, recipe: KernelRecipe) -> Kernel:
        handle = self.catalogue.handle
        with self.workbench.current():
            return cudnn_kernel.kernel_of_recipe(arrangement, recipe, handle, self.exactness)


class CudaWorkbench(Workbench):
    """The workbench of a device.

    runner  returns a function that runs a kernel on arrays of the device

    A run is timed in a CUDA graph, as compiled functions run it, so Python's overhead is not
    measured.  A candidate that cannot be captured fails, as no function could use it.
    """

    chunk = CHUNK

    def __init__(self, driver: Driver, runner: Callable[[Runner], Run]) -> None:
        self.driver = driver
        self.device = cupy.cuda.Device(driver.ordinal)
        self._runner = runner

    def runner(self, kernel: Runner) -> Run:
        return self._runner(kernel)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        with self.driver.current(), self.device:
            yield

    def empty(self, nbytes: int) -> Array:
        return cupy.empty(nbytes, cupy.uint8)

    def upload(self, array: Array) -> Array:
        return cupy.asarray(array)

    def seconds(self, run: Callable[[], None], calls: int, clock: Callable[[], float]) -> float:
        driver, stream = self.driver, self.driver.measuring

        def enqueue(stream: int) -> None:
            with on_stream(stream):
                run()

        with contextlib.ExitStack() as stack:
            driver.synchronize(driver.current_stream())  # it may still write the arrays
            enqueue(stream)  # kernels are loaded when they first run
            driver.synchronize(stream)
            graphs = capture([[enqueue] * calls], driver)
            stack.callback(driver.destroy, graphs, [])
            events = [driver.event(timing=True) for _ in range(2)]
            stack.callback(driver.destroy, [], events)
            begin, end = events
            driver.record(begin, stream)
            driver.launch_graph(graphs[0], stream)
            driver.record(end, stream)
            driver.finish(end)
            return driver.seconds(begin, end) / calls

    def reraise_device_error(self, error: Exception, name: str) -> None:
        """Raise MemoryError or DeviceLost unless the candidate itself has failed.

        cuDNN raises the same error for a lost device as for a plan that it cannot run.
        """
        if isinstance(error, MemoryError) or any(text in str(error) for text in MEMORY_ERRORS):
            self.driver.free_unused()
            raise MemoryError(one_line(str(error))) from None
        try:
            self.driver.synchronize(self.driver.measuring)
        except DeviceLost as lost:
            raise DeviceLost(f"{lost}; {name} ran last") from None

    def release(self) -> None:
        self.driver.free_unused()
