"""float16 and bfloat16: all numbers, ops on them, and distances between results."""

import numpy as np
import pytest
from needs import GENERATED

import minigraph as mg
from minigraph.graph import BFLOAT16

F16, F32, F64 = map(np.dtype, ("float16", "float32", "float64"))
SMALL = pytest.mark.parametrize("dtype", [F16, BFLOAT16], ids=str)


def compiled(inputs, outputs, level=0, **options):
    options = {"graph_opt_level": level, "autotune": "off"} | options
    return mg.comp_graph("cpu", options).compile(inputs, list(outputs))


def nodes_for(xs, name="x"):
    return [mg.input(f"{name}{i}", x.shape, x.dtype) for i, x in enumerate(xs)]


def run(op, *xs):
    """Return the results of one op, computed in C."""
    inputs = nodes_for(xs)
    function = compiled(inputs, op.results(*inputs))
    assert {kernel for _, kernel, _ in function.report().steps} == {GENERATED}
    return function(*xs)


def meaning(op, *xs):
    with np.errstate(all="ignore"):
        ys = op.forward(*xs)
    return ys if isinstance(ys, tuple) else (ys,)


def steps(x, y):
    """Return the distance of x and y in 16-bit floats; NaN is NaN, denormals of bfloat16 are 0."""

    def place(v):
        bits = v.view(np.int16).astype(int) & 0x7FFF
        if v.dtype == BFLOAT16:  # the smallest normal number is next to 0
            bits = np.maximum(bits - 0x7F, 0)
        return np.where(np.isnan(v), 1 << 20, np.where(np.signbit(v), -bits - 1, bits))

    assert x.dtype == y.dtype
    assert x.shape == y.shape
    return np.abs(place(x) - place(y)).max(initial=0)


def assert_bits(x, y):
    """Return where x and y are equal, with the signs of zeros."""
    if x.dtype in (F16, BFLOAT16):
        assert steps(x, y) == 0
    else:
        np.testing.assert_array_equal(x, y, strict=True)


def flushed(x):
    """Return where x is denormal in float32 too, which programs flush to 0."""
    bits = x.view(np.uint16)
    return (x.dtype == BFLOAT16) & (bits & 0x7F80 == 0) & (bits & 0x7F != 0)


def every(dtype):
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


def real(*size, dtype, seed=0, scale=2.0):
    return np.random.default_rng(seed).uniform(-scale, scale, size).astype(dtype)
