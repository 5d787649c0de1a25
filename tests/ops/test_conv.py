"""Convolutions: what padding and sizes do to values that are not finite."""

import numpy as np
import pytest
from op_values import forward, specs
from samples import real

from minigraph.ops import conv


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
