"""Graphs of convolutions and products before and after library fusion."""

import numpy as np
from heavy_nodes import assert_agrees, real

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph, Input
from minigraph.ops.conv import Conv2d
from minigraph.passes.notes import Notes


def function(*outputs):
    """Return the graph of expressions, with inputs in the order of their first use."""
    leaves = Graph((), outputs)
    return Graph(tuple(x for x in leaves if isinstance(x.op, Input)), outputs)


def rewritten(graph, *passes):
    """Return the graph after the passes, and the rewrites; a second run of each must do nothing."""
    notes = Notes()
    for rewrite in passes:
        graph, again = rewrite(graph, notes), Notes()
        graph.check()
        assert str(rewrite(graph, again)) == str(graph)
        assert not again.fired
    return graph, notes.fired


def drawn(graph):
    return [real(*x.shape, seed=i) for i, x in enumerate(graph.inputs)]


def assert_same_values(before, after, xs=None, tolerance=1e-5):
    xs = drawn(before) if xs is None else xs
    assert_agrees(after(*xs), before(*(x.astype(np.float64) for x in xs)), tolerance)


X, W = mg.input("x", (2, 3, 6, 7)), mg.input("w", (4, 3, 3, 3))
A, B = mg.input("a", (4, 3)), mg.input("b", (3, 5))
CONV, PRODUCT = Conv2d()(X, W), A @ B


V4, V5 = mg.input("v", (4,)), mg.input("v", (5,))


VECTORS = [mg.input(name, (4,)) for name in ("weight", "bias", "mean", "var")]


def normalised(x, eps=1e-3):
    weight, bias, mean, var = VECTORS
    return ops.batch_norm(x, mean, var, weight, bias, eps=eps)


def statistics(graph):
    """Return arrays for a graph with a normalisation, whose last input is a variance."""
    *xs, var = drawn(graph)
    return [*xs, np.abs(var) + 0.1]
