"""Nodes of convolutions and matrix products whose operands lie in one way or another."""

from minigraph.graph import Spec, input
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut, packed
from minigraph.ops.matmul import Matmul


def convolution(batch, c, k, size, window, stride, padding, dtype):
    """Return the node of a convolution, and of its two gradients."""
    conv = Conv2d((stride,) * 2, (padding,) * 2)
    x = input("x", (batch, c, size, size), dtype)
    w = input("w", (k, c, window, window), dtype)
    y = conv(x, w)
    dy = input("dy", y.shape, dtype)
    return y, Conv2dBackwardData(conv, x.shape)(dy, w), Conv2dBackwardWeights(conv, w.shape)(dy, x)


def laid_out(node, lanes):
    """The same node of images with these lanes: of its two inputs and its result."""
    shapes = [
        packed(x.shape, n) if n > 1 else x.shape for x, n in zip(node.inputs, lanes, strict=False)
    ]
    operands = [input(f"x{i}", s, node.dtype) for i, s in enumerate(shapes)]
    return LaidOut(node.op, lanes[:2], lanes[2:])(*operands)


def strides(node):
    return [x.spec.strides for x in node.inputs]


def product(x_order, y_order, bias=False, dtype="float32", shape=(3, 5, 7)):
    """Return the node of a product of matrices in these orders, and the strides of its inputs."""
    m, k, n = shape
    operands = [input("x", (m, k), dtype), input("y", (k, n), dtype)]
    steps = [
        x.spec.strides if order == "rows" else Spec(x.shape[::-1], x.dtype).strides[::-1]
        for x, order in zip(operands, (x_order, y_order), strict=True)
    ]
    if bias:
        operands.append(input("b", (n,), dtype))
        steps.append(operands[-1].spec.strides)
    return Matmul()(*operands), steps
