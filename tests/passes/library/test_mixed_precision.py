"""Convolutions and products in a 16-bit float type: `minigraph.passes.library.mixed_precision`."""

import numpy as np
import pytest

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph
from minigraph.passes.library.mixed_precision import autocast
from minigraph.passes.notes import Notes

HEAVY = {"conv2d", "conv2d_backward_data", "conv2d_backward_weights", "matmul"}


def data(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def training(scale=1.0):
    x = mg.input("x", (2, 3, 8, 8))
    w = mg.Parameter(data(4, 3, 3, 3, seed=1), "w")
    v = mg.Parameter(data(144, 5, seed=2), "v")
    y = ops.relu(ops.conv2d(x, w, padding=0)).reshape(2, -1) @ v
    loss = (y * y).mean() * scale
    return Graph((x,), (loss, *mg.grad(loss, [w, v, x])))


def small(graph, amp):
    notes = Notes()
    new = autocast(graph, notes, amp)
    new.check()
    return new, notes.fired


@pytest.mark.parametrize("amp", ["bfloat16", "float16"])
def test_convolutions_and_products_take_small_operands_and_the_rest_stays(amp):
    graph = training()
    new, fired = small(graph, amp)
    for node in new:
        if node.name in HEAVY:
            assert {x.dtype.name for x in (node, *node.inputs)} == {amp}
        elif node.name not in {"astype", "reshape", "permute_dims"}:
            assert node.dtype in (np.float32, np.bool_), node
    assert [y.dtype for y in new.outputs] == [y.dtype for y in graph.outputs]
    assert sum(fired.values()) == sum(node.name in HEAVY for node in graph)
    tolerance = 0.05 if amp == "bfloat16" else 0.01
    x = data(2, 3, 8, 8)
    for before, after in zip(graph(x), new(x), strict=True):
        assert np.abs(before - after).max() <= tolerance * np.abs(before).max()


def test_small_gradients_survive_float16():
    graph = training(scale=1e-9)
    new, _ = small(graph, "float16")
    before, after = graph(data(2, 3, 8, 8))[1], new(data(2, 3, 8, 8))[1]
    assert 0 < np.abs(before).max() < 1e-6
    assert np.abs(before - after).max() <= 0.01 * np.abs(before).max()
