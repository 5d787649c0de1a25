"""Expressions, and the kernels that fusion makes of them."""

import minigraph as mg
from minigraph.graph import Graph, Input, toposort
from minigraph.jit.fused import Fused

A, B, C = (mg.input(name, (16, 32)) for name in "abc")
ROW = mg.input("row", (32,))
W = mg.input("w", (32, 32))


def of(*ys):
    """The graph of expressions, with what they read for inputs."""
    return Graph(tuple(x for x in toposort(ys) if isinstance(x.op, Input)), ys)


def units(graph):
    """Return the executed ops in order; for a kernel its ops and, if several, its results."""
    kernels = []
    for node in graph:
        if isinstance(node.op, Fused):
            ops = " ".join(x.op.name for x in node.op.graph if x.inputs and not x.op.is_view)
            kernels.append(ops + (f" -> {len(node.specs)}" if node.is_bundle else ""))
        elif node.inputs and node.op.name != "item" and not node.op.is_view:
            kernels.append(f"[{node.op.name}]")
    return kernels
