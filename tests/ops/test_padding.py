"""Borders: NumPy's values in every mode, torch's layers, gradients, speed of what computes them."""

import numpy as np
import pytest
from beside_torch import assert_agree, needs_torch, torch
from samples import real

import minigraph as mg
from minigraph import nn, ops
from minigraph.graph import Graph

MODES = {"reflect": "reflect", "edge": "edge", "replicate": "edge", "wrap": "wrap"}
MODES["circular"] = "wrap"


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8", "bool"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("shape", "widths"),
    [
        ((5,), 4),
        ((4, 3), (1, 2)),
        ((2, 3, 4), ((0, 0), (2, 1), (3, 0))),
        ((3, 5, 4, 6), ((1, 1), (0, 0), (2, 3), (1, 2))),
        ((2, 0, 4), ((1, 1), (0, 0), (0, 1))),
        ((3, 1), ((2, 0), (0, 0))),
    ],
)
def test_borders_are_numpys(mode, shape, widths, dtype):
    values = np.random.default_rng(0).normal(size=shape) * 9
    node = mg.input("x", shape, dtype)
    x = values.astype(node.dtype)
    (got,) = Graph((node,), (ops.pad(node, widths, mode=mode),))(x)
    assert got.dtype == node.dtype
    np.testing.assert_array_equal(got, np.pad(x, widths, MODES[mode]))


@pytest.mark.parametrize(
    ("name", "args", "shape"),
    [
        ("ReflectionPad1d", [2], (2, 3, 5)),
        ("ReflectionPad2d", [1], (2, 3, 4, 5)),
        ("ReflectionPad2d", [(4, 0, 1, 3)], (2, 3, 4, 5)),
        ("ReplicationPad1d", [(0, 7)], (2, 3, 5)),
        ("ReplicationPad2d", [(1, 2, 3, 9)], (2, 3, 4, 5)),
        ("CircularPad2d", [(5, 1, 4, 0)], (2, 3, 4, 5)),
        ("ZeroPad2d", [(1, 2, 0, 3)], (2, 3, 4, 5)),
        ("ConstantPad2d", [1, 2.5], (2, 3, 4, 5)),
    ],
)
@pytest.mark.parametrize("level", [0, 3])
@needs_torch
def test_layers_of_borders_are_torchs(name, args, shape, level):
    theirs, ours = getattr(torch.nn, name)(*args), getattr(nn, name)(*args)
    assert repr(ours) == repr(theirs)
    x = real(*shape).astype("float32")
    assert_agree(ours, theirs, x, rtol=1e-5, atol=1e-5, level=level)


# ---------------------------------------------------------------- around convolutions


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch copies the input
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "valid"])
@needs_torch
def test_a_convolution_takes_the_names_of_paddings(size, dilation, padding):
    x, w = real(2, 4, 17, 13), real(6, 2, size, 3, seed=1)
    assert_agree(
        lambda x, w: ops.conv2d(x, w, None, 1, padding, (dilation, 1), 2),
        lambda x, w: torch.nn.functional.conv2d(x, w, None, 1, padding, (dilation, 1), 2),
        *(x, w),
    )
