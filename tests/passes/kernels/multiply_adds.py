"""Graphs after FMA fusion, and how they are written down."""

from collections import Counter

from minigraph.graph import Constant, Graph, Input, toposort
from minigraph.ops.fma import Fma3, Fma4
from minigraph.passes.kernels.fma import fuse_fma
from minigraph.passes.notes import Notes


def graph_of(*ys):
    return Graph(tuple(x for x in toposort(ys) if isinstance(x.op, Input)), ys)


def fused(*ys):
    """The graph of `ys` after the pass, which changes nothing when it runs again."""
    graph = fuse_fma(graph_of(*ys), Notes())
    graph.check()
    again = fuse_fma(graph, Notes())
    assert all(x is y for x, y in zip(graph.outputs, again.outputs, strict=True))
    return graph


def text(y):
    """The expression that ends in `y`, with what may change places in alphabetical order."""
    texts = {}
    for node in toposort([y]):
        op, args = node.op, [texts[x] for x in node.inputs]
        if isinstance(op, Fma3):
            texts[node] = f"({op.product}{'*'.join(sorted(args[:2]))} {op.addend}{args[2]})"
        elif isinstance(op, Fma4):
            products = op.first + "*".join(sorted(args[:2])), op.second + "*".join(sorted(args[2:]))
            texts[node] = f"({' '.join(sorted(products))})"
        elif isinstance(op, Constant):
            texts[node] = f"{op.value.item():g}"
        else:
            args = sorted(args) if op.commutative else args
            texts[node] = f"{op.name}({', '.join(args)})" if args else op.name
    return texts[y]


def count(graph):
    return Counter(node.op.name for node in graph if node.inputs)
