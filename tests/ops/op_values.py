"""Ops, and functions on expressions, evaluated at arrays."""

import numpy as np
import pytest
from samples import SAMPLES

import minigraph as mg
from minigraph.graph import Graph, Spec

F32, F64, U64 = map(np.dtype, ("float32", "float64", "uint64"))


def inputs_like(xs):
    return tuple(mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs))


def evaluate(fn, *xs):
    """The value of `fn`, a function on expressions, at arrays."""
    inputs = inputs_like(xs)
    y = fn(*inputs)
    results = Graph(inputs, tuple(y) if isinstance(y, list | tuple) else (y,))(*xs)
    return list(results) if isinstance(y, list | tuple) else results[0]


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def forward(op, xs):
    with np.errstate(all="ignore"):
        return as_tuple(op.forward(*xs))


def specs(arrays):
    return tuple(Spec(x.shape, x.dtype) for x in map(np.asarray, arrays))


every_sample = pytest.mark.parametrize(("op", "xs"), SAMPLES.values(), ids=SAMPLES)


def assert_native(inputs, outputs, values, level=2):
    """No NumPy computes the outputs at a level, and they have their meaning."""
    options = {"graph_opt_level": level, "autotune": "off"}
    function = mg.comp_graph("cpu", options).compile(inputs, outputs)
    assert not function.report().numpy
    expected = Graph(tuple(inputs), tuple(outputs))(*values)
    for result, want in zip(function(*values), expected, strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)
