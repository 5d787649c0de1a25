"""Kernels that move elements, and pooling: shapes that end within tiles, vectors and cells."""

import itertools

import numpy as np
import pytest
from native_and_reference import assert_bits, both
from needs import needs_c

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import move
from minigraph.graph import BFLOAT16, as_dtype

pytestmark = needs_c

SIDES = (1, 2, 3, 4, 7, 8, 16, 17, 33, 40)
DTYPES = (*(np.dtype(name) for name in ("bool", "float16", "float32", "int64")), BFLOAT16)


def in_order(rng, x):
    """Return x with its axes in another order, and a part of it, backwards or with steps."""
    x = ops.permute_dims(x, tuple(map(int, rng.permutation(x.ndim))))
    steps = (1, 1, 1, -1, 2, 3, -2)
    return x[tuple(slice(None, None, int(rng.choice(steps))) for _ in x.shape)]


def repeated(rng, x):
    axis = int(rng.integers(x.ndim + 1))
    y = ops.expand_dims(x, axis)
    shape = (*y.shape[:axis], int(rng.choice(SIDES)), *y.shape[axis + 1 :])
    return ops.permute_dims(ops.broadcast_to(y, shape), tuple(map(int, rng.permutation(y.ndim))))


def padded(rng, x):
    return ops.pad(x, [tuple(map(int, rng.integers(0, 4, 2))) for _ in x.shape], constant_values=1)


def joined(rng, x):
    y = x[tuple(slice(0, int(rng.integers(1, n + 1))) for n in x.shape)]
    axis = int(rng.integers(x.ndim))
    y = ops.moveaxis(ops.moveaxis(x, axis, 0)[: y.shape[axis]], 0, axis)
    return ops.concat([x, ops.flip(y, axis), x], axis)


def bits(array):
    return array.view(f"u{array.dtype.itemsize}")


@pytest.mark.parametrize(("threads", "streams"), [(1, False), (3, False), (2, True)])
def test_kernels_move_elements_as_the_meaning_does(threads, streams, monkeypatch):
    if streams:
        monkeypatch.setattr(move, "cache_bytes", lambda: 0)
    rng = np.random.default_rng(threads)
    inputs, arrays, outputs = [], [], []
    for change, ndim, dtype in itertools.product(
        (in_order, repeated, padded, joined), (1, 2, 3, 4), DTYPES
    ):
        shape = rng.choice(SIDES, ndim) if ndim < 4 else rng.choice(SIDES[:8], ndim)
        arrays.append(rng.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype))
        x = mg.input(f"x{len(inputs)}", arrays[-1].shape, arrays[-1].dtype)
        inputs.append(x)
        outputs += [change(rng, x), change(rng, in_order(rng, x))]
    options = {"num_threads": threads, "graph_opt_level": 1}
    function = mg.comp_graph("cpu", options).compile(inputs, outputs)
    assert {maker for _, maker, _ in function.report().steps} == {"c"}
    meaning = mg.comp_graph("reference").compile(inputs, outputs)
    for actual, expected in zip(function(*arrays), meaning(*arrays), strict=True):
        np.testing.assert_array_equal(bits(actual), bits(expected))


def test_large_arrays_are_moved_by_all_threads():
    def build(x):
        others = [ops.flip(x), ops.pad(x, ((1, 1), (2, 0), (0, 3))), ops.concat([x, x], 2)]
        return [ops.permute_dims(x, (2, 1, 0)), ops.permute_dims(x, (0, 2, 1)), *others]

    array = np.random.default_rng(0).standard_normal((3, 217, 300), np.float32)
    assert_bits((build, array), num_threads=4)


# ---------------------------------------------------------------- pooling

# Window, stride and padding.
WINDOWS = [
    (2, 2, 0),
    (3, 2, 1),
    (3, 1, 1),
    ((1, 2), (1, 2), 0),
    ((1, 3), (1, 2), (0, 1)),
    ((2, 5), (3, 7), (1, 2)),
    ((5, 2), (2, 3), (2, 0)),
    ((3, 66), (3, 66), 0),
    ((1, 66), (1, 66), 0),
    ((4, 20), (2, 3), (1, 9)),
    (7, 7, 0),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("average", [False, True])
def test_pools_agree_with_their_meaning(dtype, average):
    """Ties, infinities and NaN included; gradients say which of equal elements was taken."""
    rng = np.random.default_rng(0)
    array = rng.integers(-3, 4, (2, 3, 15, 66)).astype(np.float64)
    if not average:
        array[rng.random(array.shape) < 0.02] = np.nan
        array[:, :, :4, :9] = -np.inf

    def build(x):
        outputs = []
        for arguments, ceil_mode in itertools.product(WINDOWS, (False, True)):
            y = (ops.avg_pool2d if average else ops.max_pool2d)(x, *arguments, ceil_mode)
            weights = (np.arange(y.size).reshape(y.shape) % 13).astype("f4")
            loss = ops.sum(ops.where(ops.isnan(y), 0, y) * weights)
            outputs += [y, *mg.grad(loss, [x])]
        return outputs

    case = build, array.astype(as_dtype(dtype))
    bound = {"float64": 1e-12, "float32": 2e-5}.get(dtype, 0.02)
    for actual, expected in both([case], num_threads=3, graph_opt_level=1):
        actual, expected = (y.astype(np.float64) for y in (actual, expected))
        np.testing.assert_allclose(actual, expected, rtol=bound, atol=bound)
