"""What oneDNN's products of matrices make of zero padding, put right in C.

Its convolutions by such a product ("gemm") copy the images with zeros around them and multiply
these too: infinity in the other operand gives NaN there.  No other implementation does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minigraph.devices.cpu.kernel import KernelCall, Place
from minigraph.graph import Shape
from minigraph.jit.macros import with_macros
from minigraph.jit.source import KernelSource
from minigraph.ops.conv import Conv2d, Conv2dBackwardWeights
from minigraph.ops.layout import unpacked

TEXT = Path(__file__).with_suffix(".c").read_text()


def repair(op: Conv2d | Conv2dBackwardWeights, xs: Sequence[Shape], y: Shape) -> KernelCall:
    """Return the call that follows a product: of a node with inputs `xs` and result `y`.

    Its images are nchw or nhwc.
    """
    to_weights = isinstance(op, Conv2dBackwardWeights)
    conv = op.conv if isinstance(op, Conv2dBackwardWeights) else op
    before, behind, window = (xs[1], xs[0], y) if to_weights else (xs[0], y, xs[1])
    (n, _, *sides), (_, _, *results) = unpacked(before), unpacked(behind)
    k, c, *places = window
    bias = len(xs) == 3
    values = [n, conv.groups, c, k // conv.groups, *sides, *places, *results]
    values += [*conv.stride, *conv.padding, *conv.dilation]
    values += [*_steps(before), *_steps(behind), int(bias)]

    def block(ins: Sequence[Place], outs: Sequence[Place], scratch: Place) -> list[int]:
        operands = (ins[1], outs[0], ins[0]) if to_weights else (*ins[:2], outs[0], *ins[2:])
        return [*values, *(v for place in operands for v in place)]

    return KernelCall(KernelSource(with_macros(TEXT, WEIGHTS=int(to_weights))), block)


def _steps(shape: Shape) -> Shape:
    """Return the strides, in elements, of images along [n, c, h, w]."""
    _, c, h, w = unpacked(shape)
    return (c * h * w, h * w, w, 1) if len(shape) == 4 else (c * h * w, 1, w * c, c)
