"""What the autotuner may measure on a CUDA device: cuDNN's plans, and our own reorders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from minigraph.autotune.candidate import Candidate, Runner, Workbench
from minigraph.autotune.measurement import Recipe
from minigraph.devices.cuda import cudnn_kernel
from minigraph.devices.cuda.kernel import CudaKernel, cuda_kernel
from minigraph.devices.problem import FEW_CHANNELS, Arrangement, Lanes, ProblemMaker, Product
from minigraph.graph import Node, Spec
from minigraph.ops.layout import Reorder


class CudaProblems(ProblemMaker):
    """What makes problems of nodes for a CUDA device.

    handle     of cuDNN
    workbench  where candidates are measured
    current    a context in which the device is the current one
    tf32       whether products of float32 may be rounded to tf32
    """

    kind = "cudnn"

    def __init__(
        self,
        handle: Any,
        workbench: Workbench,
        current: Callable[[], AbstractContextManager[Any]],
        tf32: bool,
    ) -> None:
        self.handle = handle
        self.workbench = workbench
        self.current = current
        self.tf32 = tf32

    def product(self, node: Node) -> Product | None:
        return cudnn_kernel.product(node)

    def note(self, node: Node) -> str:
        rounded = self.tf32 and node.dtype == np.float32 and not isinstance(node.op, Reorder)
        return ", tf32" if rounded else ""

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

    def candidates(self, arrangement: Arrangement) -> Iterator[Candidate]:
        if isinstance(arrangement.node.op, Reorder):
            make = partial(_generated, arrangement)
            name = arrangement.node.dtype.name
            yield Candidate("generated", arrangement.layouts, make, precision=name)
            return
        with self.current():
            for candidate in cudnn_kernel.candidates(arrangement, self.handle, self.tf32):
                yield replace(candidate, make=partial(self._make, candidate))

    def _make(self, candidate: Candidate) -> Runner:
        with self.current():
            return candidate.make()

    def remake(self, arrangement: Arrangement, recipe: Recipe) -> Runner:
        with self.current():
            return cudnn_kernel.remade(arrangement, recipe, self.handle, self.tf32)


def _generated(arrangement: Arrangement) -> CudaKernel:
    made = cuda_kernel(arrangement.node, arrangement.strides)
    assert made is not None, "every reorder to or from nchw has a kernel"
    return made
