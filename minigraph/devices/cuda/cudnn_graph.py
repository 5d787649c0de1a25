"""Convolutions, matrix products and batch normalisations, and the graphs that tell cuDNN of them.

A problem is pure description: shapes, strides and what follows the product.  A graph is made of it
without a device; the ways to compute it, and their names, are in `plans.py`.

Images are [n, c, h, w] and weights [k, c / groups, r, s] whichever way they lie in memory: only
strides tell channels-last images, and weights [k, r, s, c], from the others.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cudnn
import numpy as np

from minigraph.graph import Array, Shape
from minigraph.ops.window import Pair

TYPES = {
    "float32": cudnn.data_type.FLOAT,
    "float16": cudnn.data_type.HALF,
    "bfloat16": cudnn.data_type.BFLOAT16,
    "bool": cudnn.data_type.BOOLEAN,
}
FLOATS = ("float32", "float16", "bfloat16")
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "bool": 1}


@dataclass(frozen=True)
class Tensor:
    """How an array lies in memory; strides count elements."""

    shape: Shape
    strides: Shape
    dtype: str = "float32"

    @property
    def nbytes(self) -> int:
        """The bytes that it takes, which have no gaps."""
        return math.prod(self.shape) * ITEMSIZE[self.dtype]

    def lies_as(self, other: Tensor) -> bool:
        """Return whether an array that lies as one lies as the other."""
        axes = zip(self.shape, self.strides, other.strides, strict=True)
        same = all(mine == its for n, mine, its in axes if n > 1)
        return self.shape == other.shape and same


def contiguous(shape: Shape, dtype: str = "float32") -> Tensor:
    """Return a tensor whose last axis is the innermost: images nchw, weights kcrs."""
    return Tensor(shape, _steps(shape, range(len(shape))), dtype)


def channels_last(shape: Shape, dtype: str = "float32") -> Tensor:
    """Return a tensor whose second axis is the innermost: images nhwc, weights krsc."""
    return Tensor(shape, _steps(shape, (0, 2, 3, 1)), dtype)


def _steps(shape: Shape, order: Sequence[int]) -> Shape:
    steps, step = [0] * len(shape), 1
    for axis in reversed(order):
        steps[axis] = step
        step *= shape[axis]
    return tuple(steps)


@dataclass(frozen=True)
class CudnnProblem:
    """A convolution, one of its gradients, or a matrix product, with what follows it.

    kind      "fprop" of x and w, "dgrad" of dy and w, "wgrad" of dy and x, "matmul" of matrices, or
              batches of them, of one rank; channels over channels of the weights are the groups
    inputs    the two operands in that order, then the bias, then what is added
    bias      whether a vector along the channels, or along the columns, is added; fprop and matmul
    residual  whether something like the output is added after that; fprop and matmul
    relu      whether negative elements become 0 last of all; fprop and matmul
    tf32      whether products of float32 may be rounded to tf32

    Sums are float32 in every dtype.
    """

    kind: str
    inputs: tuple[Tensor, ...]
    output: Tensor
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    bias: bool = False
    residual: bool = False
    relu: bool = False
    tf32: bool = False

    @property
    def dtype(self) -> str:
        return self.output.dtype

    @property
    def fused(self) -> bool:
        """Whether anything follows the product."""
        return self.bias or self.residual or self.relu

    @property
    def bare(self) -> CudnnProblem:
        """The product alone."""
        return dataclasses.replace(
            self, inputs=self.inputs[:2], bias=False, residual=False, relu=False
        )

    @property
    def operations(self) -> int:
        """Floating-point operations, those of what follows left out."""
        x, w = (tensor.shape for tensor in self.inputs[:2])
        sums = {
            "fprop": (self.output.shape, w[1:]),
            "dgrad": (x, w[1:]),
            "wgrad": (x, self.output.shape[1:]),
            "matmul": (self.output.shape, x[-1:]),
        }
        return 2 * math.prod(itertools.chain(*sums[self.kind]))


@dataclass(frozen=True)
class Normalization:
    """A batch normalisation with its ReLU, or the gradient of both; statistics are float32.

    inputs and results, in order, vectors being [1, c, 1, 1]:

      forward   x, weight, bias, running mean, running variance, and what is added if `residual`;
                y, mean, 1 / sqrt(variance + eps), the two new running values, and, with a residual,
                where y is positive
      backward  dy, x, weight, mean, 1 / sqrt(variance + eps), and bias, or with a residual where y
                is positive; dx, dweight, dbias, and with a residual its gradient

    cuDNN fuses these for channels-last images with a multiple of 8 channels in 16 bits; whether it
    has an engine for another dtype or device is what `plans` of the graph says, which is empty
    then.  Its ReLU gives 0 for NaN, where ours keeps it: a network that diverged looks healthy.
    """

    x: Tensor
    eps: float
    residual: bool = False
    backward: bool = False
    momentum: float = 1.0  # of the running values: 1 leaves the statistics of this batch in them

    @property
    def dtype(self) -> str:
        return self.x.dtype

    @property
    def vector(self) -> Tensor:
        return channels_last((1, self.x.shape[1], 1, 1))

    @property
    def mask(self) -> Tensor:
        """Where y is positive."""
        return dataclasses.replace(self.x, dtype="bool")


@dataclass(frozen=True, eq=False)
class CudnnGraph:
    """A problem as cuDNN knows it: its graph, and the uid of each operand.

    constants  numbers that cuDNN reads from host memory, by uid
    """

    problem: CudnnProblem | Normalization
    built: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: dict[int, Array]


def build(problem: CudnnProblem | Normalization, handle: Any = None) -> CudnnGraph:
    """Return the graph of a problem.  Without a handle it can be looked at, but has no plans."""
    builder = _Builder(problem, handle)
    if isinstance(problem, CudnnProblem):
        builder.product(problem)
    elif problem.backward:
        builder.normalization_backward(problem)
    else:
        builder.normalization(problem)
    return CudnnGraph(
        problem, builder.graph, tuple(builder.inputs), tuple(builder.outputs), builder.constants
    )


class _Builder:
    def __init__(self, problem: CudnnProblem | Normalization, handle: Any) -> None:
        self.graph = cudnn.pygraph(
            handle=handle,
            io_data_type=TYPES[problem.dtype],
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
        )
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.constants: dict[int, Array] = {}
        self._uids: Iterator[int] = itertools.count(1)

    # ------------------------------------------------------------ operands

    def input(self, tensor: Tensor, name: str) -> Any:
        uid = next(self._uids)
        self.inputs.append(uid)
        return self.graph.tensor(
            name=name,
            uid=uid,
            dim=list(tensor.shape),
            stride=list(tensor.strides),
            data_type=TYPES[tensor.dtype],
        )

    def output(self, value: Any, tensor: Tensor, name: str) -> None:
        uid = next(self._uids)
        self.outputs.append(uid)
        value.set_name(name).set_uid(uid).set_output(True).set_data_type(TYPES[tensor.dtype])
        value.set_dim(list(tensor.shape)).set_stride(list(tensor.strides))

    def constant(self, number: float, rank: int) -> Any:
        uid = next(self._uids)
        self.constants[uid] = np.full(1, number, np.float32)
        return self.graph.tensor(
            name=f"constant{uid}",
            uid=uid,
            dim=[1] * rank,
            stride=[1] * rank,
            data_type=cudnn.data_type.FLOAT,
            is_pass_by_value=True,
        )

    # ------------------------------------------------------------ products

    def product(self, problem: CudnnProblem) -> None:
        rest = iter(problem.inputs)
        first, second = self.input(next(rest), "first"), self.input(next(rest), "second")
        window = {
            "padding": list(problem.padding),
            "stride": list(problem.stride),
            "dilation": list(problem.dilation),
        }
        match problem.kind:
            case "fprop":
                y = self.graph.conv_fprop(image=first, weight=second, **window)
            case "dgrad":
                y = self.graph.conv_dgrad(loss=first, filter=second, **window)
            case "wgrad":
                y = self.graph.conv_wgrad(loss=first, image=second, **window)
            case _:
                y = self.graph.matmul(A=first, B=second)
        if problem.bias:
            y = self.graph.bias(input=y, bias=self.input(next(rest), "bias"))
        if problem.residual:
            y = self.graph.add(a=y, b=self.input(next(rest), "residual"))
        if problem.relu:
            y = self._relu(y, len(problem.output.shape))
        self.output(y, problem.output, "result")

    def _relu(self, y: Any, rank: int) -> Any:
        """0 where y is not above 0, else y: cuDNN's own would give 0 for NaN as well."""
        zero = self.constant(0.0, rank)
        negative = self.graph.cmp_le(input=y, comparison=zero)
        negative.set_data_type(cudnn.data_type.BOOLEAN)
        return self.graph.binary_select(input0=zero, input1=y, mask=negative)

    # ------------------------------------------------------------ normalisations

    def normalization(self, problem: Normalization) -> None:
        names = ("weight", "bias", "running_mean", "running_var")
        x = self.input(problem.x, "x")
        weight, bias, mean, var = (self.input(problem.vector, name) for name in names)
        y, *statistics = self.graph.batchnorm(
            input=x,
            scale=weight,
            bias=bias,
            in_running_mean=mean,
            in_running_var=var,
            epsilon=self.constant(problem.eps, 4),
            momentum=self.constant(problem.momentum, 4),
        )
        if problem.residual:
            y = self.graph.add(a=y, b=self.input(problem.x, "residual"))
        y = self.graph.relu(input=y)
        self.output(y, problem.x, "y")
        for value, name in zip(statistics, ("mean", "inverse", *names[2:]), strict=True):
            self.output(value, problem.vector, f"new_{name}")
        if problem.residual:
            positive = self.graph.cmp_gt(input=y, comparison=self.constant(0.0, 4))
            self.output(positive, problem.mask, "positive")

    def normalization_backward(self, problem: Normalization) -> None:
        dy, x = self.input(problem.x, "dy"), self.input(problem.x, "x")
        names = ("weight", "mean", "inverse")
        weight, mean, inverse = (self.input(problem.vector, name) for name in names)
        statistics = {"input": x, "scale": weight, "mean": mean, "inv_variance": inverse}
        if problem.residual:
            positive = self.input(problem.mask, "positive")
            dz = self.graph.scale(input=dy, scale=positive)
        else:
            bias = self.input(problem.vector, "bias")
            y = self.graph.batchnorm_inference(**statistics, bias=bias)
            dz = self.graph.relu_backward(loss=dy, input=y)
        # What the engines for this take in between: the dtype of the images.
        dz.set_data_type(TYPES[problem.dtype])
        dx, dweight, dbias = self.graph.batchnorm_backward(grad=dz, **statistics)
        self.output(dx, problem.x, "dx")
        self.output(dweight, problem.vector, "dweight")
        self.output(dbias, problem.vector, "dbias")
        if problem.residual:
            self.output(dz, problem.x, "dresidual")
