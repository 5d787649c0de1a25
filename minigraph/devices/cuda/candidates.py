"""What the autotuner may measure on a CUDA device: of cuDNN, of cuBLAS, and our own reorders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from minigraph.autotune.candidate import Candidate, Workbench
from minigraph.autotune.measurement import KernelRecipe
from minigraph.devices.cuda import cublas_kernel, cudnn_kernel
from minigraph.devices.cuda.cudnn_plan import Catalogue
from minigraph.devices.cuda.epilogue import Exactness
from minigraph.devices.cuda.kernel import CudaKernel
from minigraph.devices.cuda.kernels import cuda_kernel
from minigraph.devices.problem import (
    FEW_CHANNELS,
    Arrangement,
    Lanes,
    Layouts,
    OpProblem,
    ProblemMaker,
    Product,
)
from minigraph.errors import GraphError
from minigraph.graph import Node, Spec
from minigraph.ops.activation import Relu
from minigraph.ops.layout import Reorder
from minigraph.ops.matmul import Matmul
from minigraph.program import Kernel

# Of an H100, roughly: what counts is how work compares with moving data.
BYTES = 2.5e12  # a second
FLOPS = {"small": 4e14, "tf32": 2e14, "plain": 4e13}  # floating-point operations a second


class CudaProblems(ProblemMaker):
    """Makes the problems of nodes for a CUDA device.

    handle     of cuDNN
    workbench  where candidates are measured
    current    a context in which the device is the current one
    exactness  what the libraries are allowed to do
    ordinal    of the device
    """

    kind = "cudnn"

    def __init__(
        self,
        handle: Any,
        workbench: Workbench,
        current: Callable[[], AbstractContextManager[Any]],
        exactness: Exactness,
        ordinal: int = 0,
    ) -> None:
        super().__init__()
        self.catalogue = Catalogue(handle)
        self.ordinal = ordinal
        self.workbench = workbench
        self.current = current
        self.exactness = exactness

    def product(self, node: Node) -> Product | None:
        return cudnn_kernel.product(node) or cublas_kernel.product(node)

    def note(self, node: Node) -> str:
        product = self.product(node)
        if product is None:
            return ""
        rounded = self.exactness.tf32 and node.dtype == np.float32
        ordinary = self.exactness.fast_math and isinstance(product.activation, Relu)
        return ", tf32" * rounded + ", no NaN" * ordinary

    def image_lanes(self, roles: str, channels: Sequence[int]) -> list[Lanes]:
        """Return nchw and the channels last.

        So few channels as come into a network are padded anyhow, so they need not be last before.
        """
        last = [1 if role == "w" else c for role, c in zip(roles, channels, strict=True)]
        incoming = roles.index("x")
        options = [[1, 1, 1], last]
        if channels[incoming] <= FEW_CHANNELS:
            options.append([1 if i == incoming else n for i, n in enumerate(last)])
        return [(first, second, result) for first, second, result in options]

    def reorder_lanes(self, spec: Spec) -> list[int]:
        return [1, spec.shape[1]]

    def estimate(self, problem: OpProblem, layouts: Layouts) -> float | None:
        """Return roughly the seconds of a convolution or reorder.

        Tensor cores read the channels last, so cuDNN transposes images that lie otherwise, and
        results back, inside each convolution of 16 bits or in tf32.
        """
        if isinstance(problem.op, Matmul):
            return None
        specs = (*problem.inputs, *problem.results)
        if isinstance(problem.op, Reorder):
            return 2 * specs[0].nbytes / BYTES
        small = specs[0].dtype.itemsize < 4
        cores = small or (self.exactness.tf32 and specs[0].dtype == np.float32)
        flops = FLOPS["small" if small else "tf32" if cores else "plain"]
        transposed = (
            spec.nbytes
            for spec, layout in zip(specs, layouts, strict=True)
            if layout.lanes and (layout.lanes == 1) == cores
        )
        moved = sum(spec.nbytes for spec in specs) + 2 * sum(transposed)
        return problem.work / flops + moved / BYTES

    def candidates(self, arrangement: Arrangement) -> Iterator[Candidate]:
        if isinstance(arrangement.node.op, Reorder):
            make = partial(_generated, arrangement)
            name = arrangement.node.dtype.name
            yield Candidate("generated", arrangement.layouts, make, precision=name)
            return
        if cublas_kernel.product(arrangement.node):
            offered = cublas_kernel.candidates(arrangement, self.ordinal, self.exactness)
        else:
            offered = cudnn_kernel.candidates(arrangement, self.catalogue, self.exactness)
        while True:
            with self.current():  # and not for whoever asks for the next one
                candidate = next(offered, None)
            if candidate is None:
                return
            yield replace(candidate, make=partial(self._make, candidate))

    def _make(self, candidate: Candidate) -> Kernel:
        with self.current():
            try:
                kernel: Kernel = candidate.make()
            except GraphError as error:
                try:
                    self.workbench.examine(error, candidate.name)
                except MemoryError:  # of the library's own; now CuPy's pool holds nothing unused
                    kernel = candidate.make()
                else:
                    raise
            return kernel

    def remake(self, arrangement: Arrangement, recipe: KernelRecipe) -> Kernel:
        with self.current():
            return cudnn_kernel.kernel_of_recipe(
                arrangement, recipe, self.catalogue.handle, self.exactness
            )


def _generated(arrangement: Arrangement) -> CudaKernel:
    kernel = cuda_kernel(arrangement.node, arrangement.strides)
    assert kernel is not None, "every reorder to or from nchw has a kernel"
    return kernel
