"""The line of a test, and the value of an expression."""

import inspect

import numpy as np

from minigraph.graph import Graph, toposort


def line():
    return inspect.currentframe().f_back.f_lineno


def value(node, **feeds):
    names = {n.name: n for n in toposort([node]) if n.op.__class__.__name__ == "Input"}
    return Graph(tuple(names[k] for k in feeds), (node,))(*feeds.values())[0]


ARRAY = np.array([[1.0, -2.0], [3.0, 0.5]])
