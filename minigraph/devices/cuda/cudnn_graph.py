"""Convolutions, and the graphs that describe them to cuDNN.

A problem has shapes, strides and an epilogue.  Its graph can be built without a device;
`cudnn_plan` has the plans that compute it.

Images are [n, c, h, w] and weights [k, c / groups, r, s] in every memory layout: only the strides
tell images with the channels last, and weights [k, r, s, c], from contiguous ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cudnn

from minigraph.graph import Shape
from minigraph.ops.window import Pair

TYPES = {
    "float32": cudnn.data_type.FLOAT,
    "float16": cudnn.data_type.HALF,
    "bfloat16": cudnn.data_type.BFLOAT16,
}
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
OPERANDS = "first", "second", "bias"


@dataclass(frozen=True)
class Tensor:
    """The layout of an array; strides are in elements."""

    shape: Shape
    strides: Shape
    dtype: str = "float32"

    @property
    def nbytes(self) -> int:
        """Bytes of the array, which has no gaps."""
        return math.prod(self.shape) * ITEMSIZE[self.dtype]

    def has_layout_of(self, other: Tensor) -> bool:
        """Return whether the two describe the same layout."""
        axes = zip(self.shape, self.strides, other.strides, strict=True)
        return self.shape == other.shape and all(a == b for n, a, b in axes if n > 1)


def contiguous(shape: Shape, dtype: str = "float32") -> Tensor:
    """Return a tensor whose last axis is the innermost: images nchw, weights kcrs."""
    return Tensor(shape, _strides(shape, range(len(shape))), dtype)


def channels_last(shape: Shape, dtype: str = "float32") -> Tensor:
    """Return a tensor whose second axis is the innermost: images nhwc, weights krsc."""
    return Tensor(shape, _strides(shape, (0, 2, 3, 1)), dtype)


def _strides(shape: Shape, order: Sequence[int]) -> Shape:
    steps, step = [0] * len(shape), 1
    for axis in reversed(order):
        steps[axis] = step
        step *= shape[axis]
    return tuple(steps)


@dataclass(frozen=True)
class CudnnProblem:
    """A convolution with its epilogue, or one of its gradients.

    kind      "fprop" of x and w, "dgrad" of dy and w, "wgrad" of dy and x
    inputs    the two operands in that order; for fprop then the bias, a vector along the channels
    relu      whether results that are not above 0, NaN included, become 0; fprop only
    tf32      whether products of float32 may be rounded to tf32

    Sums are float32 in every dtype.
    """

    kind: str
    inputs: tuple[Tensor, ...]
    output: Tensor
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    relu: bool = False
    tf32: bool = False

    @property
    def dtype(self) -> str:
        return self.output.dtype

    @property
    def without_epilogue(self) -> CudnnProblem:
        """The product alone."""
        return dataclasses.replace(self, inputs=self.inputs[:2], relu=False)

    @property
    def family(self) -> tuple[Any, ...]:
        """The key of the problems that differ only in sizes."""
        tensors = (*self.inputs[:2], self.output)
        are_last = tuple(t.has_layout_of(channels_last(t.shape, t.dtype)) for t in tensors)
        epilogue = len(self.inputs), self.relu
        window = self.stride, self.dilation, self.groups > 1
        return (self.kind, self.dtype, self.tf32, *epilogue, *window, are_last)

    @property
    def window(self) -> Shape:
        weights = self.output if self.kind == "wgrad" else self.inputs[1]
        return weights.shape[2:]

    @property
    def groups(self) -> int:
        """Number of groups: the channels of x over those of the weights."""
        x, w = (tensor.shape for tensor in self.inputs[:2])
        images = {"fprop": (x, w), "dgrad": (self.output.shape, w), "wgrad": (w, self.output.shape)}
        pixels, weights = images[self.kind]
        return pixels[1] // weights[1]


def build(problem: CudnnProblem, handle: Any = None) -> Any:
    """Return cuDNN's graph of a problem; without a handle it can be printed, but has no plans.

    The uids of the inputs and then of the output are 1, 2, 3, ...
    """
    graph = cudnn.pygraph(
        handle=handle,
        io_data_type=TYPES[problem.dtype],
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )
    first, second, *bias = (
        graph.tensor(
            name=name,
            uid=uid,
            dim=list(tensor.shape),
            stride=list(tensor.strides),
            data_type=TYPES[tensor.dtype],
        )
        for uid, (name, tensor) in enumerate(zip(OPERANDS, problem.inputs, strict=False), 1)
    )
    window = {
        "padding": list(problem.padding),
        "stride": list(problem.stride),
        "dilation": list(problem.dilation),
    }
    match problem.kind:
        case "fprop":
            y = graph.conv_fprop(image=first, weight=second, **window)
        case "dgrad":
            y = graph.conv_dgrad(loss=first, filter=second, **window)
        case _:
            y = graph.conv_wgrad(loss=first, image=second, **window)
    if bias:
        y = graph.bias(input=y, bias=bias[0])
    if problem.relu:
        y = graph.relu(input=y)
    output = problem.output
    y.set_name("result").set_uid(len(problem.inputs) + 1).set_output(True)
    y.set_data_type(TYPES[output.dtype])
    y.set_dim(list(output.shape)).set_stride(list(output.strides))
    return graph
