"""Expressions, and the kernels that fusion makes of them."""

import numpy as np
from rewriting import run, values

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph, Input, toposort
from minigraph.jit.fused import Fused
from minigraph.passes.kernels.fusion import fuse_kernels
from minigraph.passes.notes import Notes

A, B, C = (mg.input(name, (16, 32)) for name in "abc")
ROW, COLUMN = mg.input("row", (32,)), mg.input("column", (16, 1))
SQUARE = mg.input("square", (16, 16))
W = mg.input("w", (32, 32))
IMAGES = mg.input("images", (4, 8, 6, 6))
CHANNELS = mg.input("channels", (8, 1, 1))


def of(*ys):
    """The graph of expressions, with what they read for inputs."""
    return Graph(tuple(x for x in toposort(ys) if isinstance(x.op, Input)), ys)


def units(graph):
    """What is executed, in order; of a kernel its ops and, if there are several, its results."""
    found = []
    for node in graph:
        if isinstance(node.op, Fused):
            ops = " ".join(x.op.name for x in node.op.graph if x.inputs and not x.op.is_view)
            found.append(ops + (f" -> {len(node.specs)}" if node.is_bundle else ""))
        elif node.inputs and node.op.name != "item" and not node.op.is_view:
            found.append(f"[{node.op.name}]")
    return found


def fused(*ys, by=fuse_kernels):
    """The units that a pass makes of expressions, each of which is there and computes the same."""
    before = of(*ys)
    graph, _ = run(by, before)
    again, fired = run(by, graph)
    assert str(again) == str(graph) and not fired
    xs = [values(x.dtype, x.shape) for x in before.inputs]
    for new, old in zip(graph(*xs), before(*xs), strict=True):
        np.testing.assert_array_equal(new, old)
    return units(graph)


def reasons(*ys, by=fuse_kernels):
    """Why neighbours were not fused, as (op that is read, reader, reason)."""
    notes = Notes()
    by(of(*ys), notes)
    return [(stop.producer, stop.consumer, stop.reason) for stop in notes.stops]


def softmax(x, axis):
    e = ops.exp(x - ops.max(x, axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)
