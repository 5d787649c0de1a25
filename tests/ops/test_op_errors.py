"""Errors of ops say what was asked of what, and where."""

import numpy as np
import pytest

import minigraph as mg
from minigraph import GraphError, ops
from minigraph.graph import Graph


@pytest.mark.parametrize(
    ("name", "fn", "value"),
    [
        ("take", lambda i: ops.take(np.zeros((2, 3)), i, 0), "2"),
        ("take", lambda i: ops.take(np.zeros((3, 2)), i - 4, 1), "-3"),
        ("one_hot", lambda i: ops.one_hot(i, 2), "2"),
        ("one_hot", lambda i: ops.one_hot(i - 3, 2), "-2"),
        ("cross_entropy", lambda i: ops.cross_entropy(np.zeros((3, 2)), i), "2"),
    ],
)
def test_index_out_of_range_is_an_error_at_the_call(name, fn, value):
    y = mg.input("i", (3,), "int64")
    graph = Graph((y,), (fn(y),))
    with pytest.raises(GraphError) as caught:
        graph(np.array([1, 2, 1]))
    text = str(caught.value)
    assert text.startswith(f"{name}: ")
    assert f" {value} at (" in text
    assert text.endswith(f"at {__file__}:{fn.__code__.co_firstlineno}")
