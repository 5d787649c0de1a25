"""Borders: NumPy's values in every mode, torch's layers; what they do around convolutions."""

import numpy as np
import pytest
from beside_torch import assert_agree, needs_torch, torch
from needs import needs_compiler
from op_values import forward, specs
from samples import real

import minigraph as mg
from minigraph import nn, ops
from minigraph.graph import Graph
from minigraph.ops import conv

MODES = {"reflect": "reflect", "edge": "edge", "replicate": "edge", "wrap": "wrap"}
MODES["circular"] = "wrap"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("shape", "widths"),
    [
        ((5,), 4),
        ((4, 3), (1, 2)),
        ((2, 3, 4), ((0, 0), (2, 1), (3, 0))),
        ((3, 5, 4, 6), ((1, 1), (0, 0), (2, 3), (1, 2))),
        ((2, 0, 4), ((1, 1), (0, 0), (0, 1))),
        ((3, 1), ((2, 0), (0, 0))),
    ],
)
def test_borders_are_numpys(mode, shape, widths):
    values = np.random.default_rng(0).normal(size=shape) * 9
    for dtype in ("float32", "float64", "bfloat16", "int8", "bool"):
        node = mg.input("x", shape, dtype)
        x = values.astype(node.dtype)
        (result,) = Graph((node,), (ops.pad(node, widths, mode=mode),))(x)
        np.testing.assert_array_equal(result, np.pad(x, widths, MODES[mode]), strict=True)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "args", "shape"),
    [
        ("ReflectionPad1d", [2], (2, 3, 5)),
        ("ReflectionPad2d", [1], (2, 3, 4, 5)),
        ("ReflectionPad2d", [(4, 0, 1, 3)], (2, 3, 4, 5)),
        ("ReplicationPad1d", [(0, 7)], (2, 3, 5)),
        ("ReplicationPad2d", [(1, 2, 3, 9)], (2, 3, 4, 5)),
        ("CircularPad2d", [(5, 1, 4, 0)], (2, 3, 4, 5)),
        ("ZeroPad2d", [(1, 2, 0, 3)], (2, 3, 4, 5)),
        ("ConstantPad2d", [1, 2.5], (2, 3, 4, 5)),
    ],
)
@pytest.mark.parametrize("level", [0, 3])
@needs_torch
def test_layers_of_borders_are_torchs(name, args, shape, level):
    theirs, ours = getattr(torch.nn, name)(*args), getattr(nn, name)(*args)
    assert repr(ours) == repr(theirs)
    x = real(*shape).astype("float32")
    assert_agree(ours, theirs, x, rtol=1e-5, atol=1e-5, level=level)


# ---------------------------------------------------------------- around convolutions


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch copies the input
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "valid"])
@needs_torch
def test_a_convolution_takes_the_names_of_paddings(size, dilation, padding):
    x, w = real(2, 4, 17, 13), real(6, 2, size, 3, seed=1)
    assert_agree(
        lambda x, w: ops.conv2d(x, w, None, 1, padding, (dilation, 1), 2),
        lambda x, w: torch.nn.functional.conv2d(x, w, None, 1, padding, (dilation, 1), 2),
        *(x, w),
    )


def pairs_that_meet(conv, x, w, y):
    """Yield the indices of pixels, weights and results that meet, one after the other."""
    (n, _, height, width), (k, c, r, s) = x.shape, w.shape
    sides = zip(conv.stride, conv.padding, conv.dilation, strict=True)
    (t, p, d), (u, q, e) = sides
    for image, out, ch, i, j, a, b in np.ndindex(n, k, c, *y.shape[2:], r, s):
        row, column = i * t - p + a * d, j * u - q + b * e
        if 0 <= row < height and 0 <= column < width:
            channel = ch + out // (k // conv.groups) * c
            yield (image, channel, row, column), (out, ch, a, b), (image, out, i, j)


PADDED = {
    "same": ((2, 2, 4, 3), (2, 2, 3, 3), conv.Conv2d(padding=(1, 1))),
    "stride": ((1, 2, 5, 6), (2, 2, 3, 2), conv.Conv2d((2, 3), (1, 1))),
    "dilation": ((1, 1, 5, 4), (2, 1, 3, 3), conv.Conv2d((1, 2), (2, 2), (2, 2))),
    "groups": ((1, 4, 3, 4), (4, 2, 2, 3), conv.Conv2d(padding=(1, 2), groups=2)),
    "padding beyond the window": ((1, 1, 2, 2), (1, 1, 2, 2), conv.Conv2d(padding=(3, 3))),
    "none": ((2, 2, 4, 3), (2, 2, 3, 3), conv.Conv2d()),
}


@pytest.mark.parametrize("values", ["real", "special"])
@pytest.mark.parametrize(("x", "w", "op"), PADDED.values(), ids=PADDED)
def test_padding_takes_no_part_in_a_convolution(x, w, op, values):
    x, w = real(*x), real(*w, seed=1)
    dy = real(*op.infer(*specs([x, w])).shape, seed=2)
    if values == "special":
        for v in (x, w, dy):
            v.flat[0], v.flat[-1], v.flat[v.size // 2] = np.inf, np.nan, -np.inf
    y, dx, dw = np.zeros_like(dy), np.zeros_like(x), np.zeros_like(w)
    with np.errstate(all="ignore"):
        for pixel, weight, result in pairs_that_meet(op, x, w, dy):
            y[result] += x[pixel] * w[weight]
            dx[pixel] += dy[result] * w[weight]
            dw[weight] += dy[result] * x[pixel]
    for way, xs, want in (
        (op, [x, w], y),
        (conv.Conv2dBackwardData(op, x.shape), [dy, w], dx),
        (conv.Conv2dBackwardWeights(op, w.shape), [dy, x], dw),
    ):
        np.testing.assert_allclose(*forward(way, xs), want, rtol=1e-12, atol=1e-12)
