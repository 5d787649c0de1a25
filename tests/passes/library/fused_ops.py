"""Graphs before and after a pass that makes one op of several."""

import numpy as np
from samples import real

import minigraph as mg
from minigraph.graph import Graph, Item
from minigraph.passes.notes import Notes

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 1e-30, 1e30, -3e38]


def fused(rewrite, inputs, outputs):
    """The graph after the pass, which then has nothing left to do, and what it did."""
    notes, again = Notes(), Notes()
    graph = rewrite(Graph(tuple(inputs), tuple(outputs)), notes)
    graph.check()
    assert str(rewrite(graph, again)) == str(graph)
    assert not again.fired
    return graph, notes.fired


def assert_same_numbers(graph, inputs, outputs, xs, tolerance=0.0):
    """The graph computes what it was made from: to the bit, unless there is a tolerance."""
    for got, want in zip(graph(*xs), Graph(tuple(inputs), tuple(outputs))(*xs), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
        if not tolerance:
            np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


def names(graph):
    return [node.op.name for node in graph if node.inputs and not isinstance(node.op, Item)]


def float32(*size, seed=0):
    return real(*size, seed=seed).astype(np.float32)


def with_gradients(loss, wrt):
    return [loss, *mg.grad(loss, wrt)]
