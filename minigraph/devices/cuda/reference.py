"""Convolutions as sums of matrix products, one for each element of the window.

The ops' own meaning is for the host: the autotuner's arrays lie on the device, and are large.  This
takes whichever arrays follow NumPy's protocols; in float32 they are multiplied as float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from minigraph.graph import Array, Shape, Spec
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights

Taps = Iterator[tuple[slice, int, int, Array]]


def convolution(conv: Conv2d, x: Array, w: Array) -> Array:
    """Return the convolution of images x with weights w."""
    y = np.zeros_like(x, shape=conv.infer(Spec(x.shape, x.dtype), Spec(w.shape, x.dtype)).shape)
    for part, i, j, pixels in _taps(conv, _padded(conv, x), w.shape, y.shape):
        products = np.tensordot(w[part, :, i, j], pixels, ((1,), (1,)))
        y[:, part] += np.moveaxis(products, 0, 1)
    return y


def data_gradient(op: Conv2dBackwardData, dy: Array, w: Array) -> Array:
    """Return the gradient of a convolution for its images."""
    padded = _padded(op.conv, np.zeros_like(dy, shape=op.shape))
    for part, i, j, pixels in _taps(op.conv, padded, w.shape, dy.shape):
        products = np.tensordot(w[part, :, i, j], dy[:, part], ((0,), (1,)))
        pixels += np.moveaxis(products, 0, 1)  # a view
    (top, left), (height, width) = op.conv.padding, op.shape[2:]
    return padded[:, :, top : top + height, left : left + width]


def weights_gradient(op: Conv2dBackwardWeights, dy: Array, x: Array) -> Array:
    """Return the gradient of a convolution for its weights."""
    dw = np.zeros_like(dy, shape=op.shape)
    for part, i, j, pixels in _taps(op.conv, _padded(op.conv, x), op.shape, dy.shape):
        dw[part, :, i, j] = np.tensordot(dy[:, part], pixels, ((0, 2, 3), (0, 2, 3)))
    return dw


def _padded(conv: Conv2d, x: Array) -> Array:
    return np.pad(x, ((0, 0), (0, 0), *((p, p) for p in conv.padding)))


def _taps(conv: Conv2d, padded: Array, w: Shape, y: Shape) -> Taps:
    """Yield the channels behind, and the pixels before, that meet at an element of the weights."""
    k, c, *window = w
    size = k // conv.groups
    for group, i, j in itertools.product(range(conv.groups), *map(range, window)):
        rows, columns = (
            slice(start * d, start * d + (n - 1) * step + 1, step)
            for start, n, step, d in zip((i, j), y[2:], conv.stride, conv.dilation, strict=True)
        )
        inside = slice(group * c, (group + 1) * c)
        yield slice(group * size, (group + 1) * size), i, j, padded[:, inside, rows, columns]
