"""Nodes of convolutions and matrix products whose operands lie in one way or another."""

import numpy as np

from minigraph.graph import Spec, input
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut, packed
from minigraph.ops.matmul import Matmul

# n, channels in, channels out, (h, w), (r, s), then what differs from the defaults
CONVOLUTIONS = {
    "1x1": (2, 16, 32, (7, 7), (1, 1), {}),
    "1x1-odd-channels": (2, 5, 7, (6, 5), (1, 1), {}),
    "1x1-stride": (2, 16, 16, (8, 8), (1, 1), {"stride": (2, 2)}),
    "1x1-stride-remainder": (1, 8, 8, (9, 10), (1, 1), {"stride": (2, 3)}),
    "3x3": (2, 16, 16, (9, 8), (3, 3), {}),
    "3x3-same": (2, 16, 24, (9, 8), (3, 3), {"padding": (1, 1)}),
    "3x3-odd-channels": (2, 3, 5, (9, 8), (3, 3), {"padding": (1, 1)}),
    "3x3-one-channel": (3, 1, 1, (5, 5), (3, 3), {}),
    "3x3-stride": (2, 16, 16, (9, 9), (3, 3), {"stride": (2, 2), "padding": (1, 1)}),
    "3x3-stride-remainder": (2, 8, 8, (10, 12), (3, 3), {"stride": (2, 3)}),
    "3x3-stride-remainder-padding": (
        2,
        8,
        8,
        (10, 11),
        (3, 3),
        {"stride": (2, 3), "padding": (1, 1)},
    ),
    "stride-beyond-the-window": (1, 8, 8, (13, 15), (3, 2), {"stride": (5, 4)}),
    "5x5": (1, 16, 8, (9, 8), (5, 5), {"padding": (2, 2)}),
    "7x7-stride": (2, 3, 16, (20, 21), (7, 7), {"stride": (2, 2), "padding": (3, 3)}),
    "11x11-stride": (1, 3, 16, (31, 31), (11, 11), {"stride": (4, 4), "padding": (2, 2)}),
    "wide-window": (1, 4, 8, (3, 12), (1, 7), {"padding": (0, 3)}),
    "window-as-large-as-the-image": (2, 8, 8, (4, 5), (4, 5), {}),
    "window-larger-than-the-image": (1, 4, 4, (2, 2), (3, 3), {"padding": (1, 1)}),
    "padding-beyond-the-window": (1, 4, 4, (4, 4), (2, 2), {"padding": (3, 3)}),
    "unequal-padding": (1, 8, 8, (6, 6), (3, 3), {"padding": (0, 2)}),
    "dilation": (2, 8, 8, (9, 10), (3, 3), {"dilation": (2, 2), "padding": (2, 2)}),
    "unequal-dilation": (1, 4, 6, (9, 10), (2, 3), {"dilation": (3, 2)}),
    "dilation-stride": (1, 8, 8, (11, 12), (3, 3), {"dilation": (2, 3), "stride": (2, 2)}),
    "groups": (2, 16, 32, (6, 6), (3, 3), {"groups": 2, "padding": (1, 1)}),
    "odd-groups": (2, 6, 9, (6, 6), (3, 3), {"groups": 3}),
    "depthwise": (2, 16, 16, (8, 8), (3, 3), {"groups": 16, "padding": (1, 1)}),
    "depthwise-odd": (2, 5, 5, (8, 7), (3, 3), {"groups": 5, "stride": (2, 2)}),
    "depthwise-twice-as-many": (1, 4, 8, (6, 6), (3, 3), {"groups": 4}),
    "groups-dilation-stride": (
        1,
        8,
        8,
        (9, 9),
        (3, 3),
        {"groups": 4, "dilation": (2, 1), "stride": (1, 2), "padding": (2, 1)},
    ),
    "one-pixel": (3, 8, 8, (1, 1), (1, 1), {}),
    "on-two-threads": (4, 32, 64, (28, 28), (3, 3), {"padding": (1, 1)}),
}


def real(*size, seed=0, low=-2.0, high=2.0):
    return np.random.default_rng(seed).uniform(low, high, size).astype(np.float32)


def assert_agrees(ys, expected, tolerance=1e-5):
    """Equal to a few roundings of the largest element; infinities and NaN at the same places."""
    for y, wanted in zip(ys, expected, strict=True):
        assert y.shape == wanted.shape
        if wanted.dtype.kind != "f":
            np.testing.assert_array_equal(y, wanted)
            continue
        scale = np.abs(wanted).max(initial=1e-30, where=np.isfinite(wanted))
        np.testing.assert_allclose(y, wanted, rtol=0, atol=tolerance * scale)


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
