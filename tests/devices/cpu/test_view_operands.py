"""Views as operands of products, convolutions and other heavy ops."""

from collections import Counter

import numpy as np
import pytest
from heavy_nodes import assert_agrees, real
from heavy_samples import SAMPLES, kernel_of, meaning
from needs import needs_onednn

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph
from minigraph.ops.matmul import Matmul

pytestmark = needs_onednn


VIEWS = {
    "transposed-left": ((5, 3), (5, 7), lambda x, y: (x.T, y)),
    "transposed-right": ((3, 5), (7, 5), lambda x, y: (x, y.T)),
    "transposed-both": ((5, 3), (7, 5), lambda x, y: (x.T, y.T)),
    "rows": ((9, 5), (5, 7), lambda x, y: (x[2:6], y)),
    "columns": ((3, 12), (5, 7), lambda x, y: (x[:, 4:9], y)),
    "columns-of-both": ((3, 12), (5, 20), lambda x, y: (x[:, 4:9], y[:, 10:17])),
    "transposed-columns": ((12, 3), (5, 7), lambda x, y: (x[4:9].T, y)),
    "every-second-row": ((6, 5), (5, 7), lambda x, y: (x[::2], y)),
    "every-second-column": ((3, 10), (5, 7), lambda x, y: (x[:, ::2], y)),
    "flipped-rows": ((3, 5), (5, 7), lambda x, y: (x[::-1], y)),
    "flipped-columns": ((3, 5), (5, 7), lambda x, y: (x[:, ::-1], y)),
    "broadcast-row": ((1, 5), (5, 7), lambda x, y: (ops.broadcast_to(x, (3, 5)), y)),
    "broadcast-number": ((1, 1), (5, 7), lambda x, y: (ops.broadcast_to(x, (3, 5)), y)),
    "batch-transposed": ((4, 5, 3), (4, 5, 7), lambda x, y: (x.transpose(0, 2, 1), y)),
    "batch-behind": ((3, 5, 4), (4, 5, 7), lambda x, y: (x.transpose(2, 0, 1), y)),
    "batch-between": ((3, 4, 5), (4, 5, 7), lambda x, y: (x.transpose(1, 0, 2), y)),
    "batch-sliced": ((8, 3, 5), (4, 5, 7), lambda x, y: (x[::2], y)),
    "batch-flipped": ((4, 3, 5), (4, 5, 7), lambda x, y: (x[::-1], y)),
    "batch-broadcast": ((3, 5), (4, 5, 7), lambda x, y: (ops.broadcast_to(x, (4, 3, 5)), y)),
    "heads": ((2, 3, 4, 5), (2, 7, 4, 5), lambda x, y: (x.swapaxes(1, 2), y.transpose(0, 2, 3, 1))),
    "heads-broadcast": ((3, 4, 5), (2, 4, 5, 7), lambda x, y: (x.transpose(1, 0, 2), y)),
    "batches-swapped": ((2, 4, 3, 5), (4, 2, 5, 7), lambda x, y: (x.transpose(1, 0, 2, 3), y)),
    "one-row-of-many": ((9, 5), (5, 7), lambda x, y: (x[3:4], y)),
    "one-column-of-many": ((3, 9), (1, 7), lambda x, y: (x[:, 3:4], y)),
    "itself": ((5, 5), (1, 1), lambda x, y: (x, x.T)),
}
# Whose rows or columns are read where they are.
IN_PLACE = ("transposed-left", "transposed-right", "transposed-both", "rows", "columns") + (
    "batch-between",
    "batches-swapped",
    "heads",
    "heads-broadcast",
)


@pytest.mark.parametrize("view", VIEWS)
def test_a_product_of_views_agrees_with_numpy_and_copies_what_it_must(view):
    left, right, fn = VIEWS[view]
    x, y = mg.input("x", left), mg.input("y", right)
    args = real(*left), real(*right, seed=1)
    z = Matmul()(*fn(x, y))
    function = mg.comp_graph("cpu").compile([x, y], z)
    expected = Graph((x, y), (z,))(*(a.astype(np.float64) for a in args))
    assert_agrees([function(*args)], expected)
    native = "onednn", "c sum of products"  # of one row, the latter may be measured to be faster
    assert kernel_of(function, "matmul").startswith(native)
    if view in IN_PLACE:
        assert [name for name, _, _ in function.report().steps] == ["matmul"]


@pytest.mark.parametrize(
    ("left", "right"), [((5,), (5,)), ((3, 5), (5,)), ((5,), (5, 7)), ((4, 3, 5), (5,))]
)
def test_product_with_vectors_agrees_with_numpy(left, right):
    x, y = mg.input("x", left), mg.input("y", right)
    args = real(*left), real(*right, seed=1)
    z = mg.comp_graph("cpu").compile([x, y], x @ y)(*args)
    assert_agrees([z], [np.asarray(args[0].astype(np.float64) @ args[1])])


def spread(x):
    """x with something between its elements and around them."""
    return np.pad(np.repeat(x, 2, -1), 1, constant_values=3)


# How an operand lies in memory, and the view that shows it.
LAYOUTS = {
    "transposed": (lambda x: x.T.copy(), lambda x: x.T),
    "flipped": (lambda x: x[::-1, ..., ::-1].copy(), lambda x: x[::-1, ..., ::-1]),
    "spread": (spread, lambda x: x[(slice(1, -1),) * x.ndim][..., ::2]),
}


def some_of_each_op(count):
    counts = Counter()
    for name, (op, xs) in SAMPLES.items():
        counts[op.name] += 1
        if counts[op.name] <= count:
            yield pytest.param(op, xs, id=name)


@pytest.mark.parametrize(("op", "xs"), list(some_of_each_op(4)))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_may_be_views(op, xs, layout):
    lay, show = LAYOUTS[layout]
    if layout == "flipped" and any(x.ndim < 2 for x in xs):
        lay, show = (lambda x: x[::-1].copy()), (lambda x: x[::-1])
    args = [lay(x) for x in xs]
    inputs = [mg.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(args)]
    function = mg.comp_graph("cpu").compile(inputs, list(op.results(*map(show, inputs))))
    assert_agrees(function(*args), meaning(op, *xs))


def test_operands_of_a_convolution_may_be_views_of_views():
    x, w = mg.input("x", (6, 7, 2, 8)), mg.input("w", (3, 3, 8, 10))
    images, weights = x.transpose(2, 3, 0, 1), w[::-1, :, :, ::2].transpose(3, 2, 0, 1)
    y = ops.conv2d(images, weights, padding=1)
    args = real(*x.shape), real(*w.shape, seed=1)
    function = mg.comp_graph("cpu").compile([x, w], y)
    assert_agrees([function(*args)], Graph((x, w), (y,))(*(a.astype(np.float64) for a in args)))
