"""Library fusion of convolutions and products; see also `bias`, `activation` in `cases/`."""

import numpy as np
import pytest
from heavy_nodes import assert_agrees
from products import PRODUCT, V4, W, X, function, normalised, rewritten, statistics

import minigraph as mg
from minigraph import ops
from minigraph.ops.activation import Activated
from minigraph.ops.conv import Conv2d
from minigraph.passes.library.convolution import fold_batch_norm, fuse_bias


def test_a_fused_bias_keeps_the_line_and_the_turn_of_its_sum():
    y = PRODUCT + mg.input("v", (5,))
    (fused,) = rewritten(function(y), fuse_bias)[0].outputs
    assert fused.source == y.source
    assert fused.order[0] == y.order[0]


def test_reports_call_an_activated_op_by_the_name_of_the_op():
    op = Activated(Conv2d(), ops.relu(X).op)
    assert op.name == "conv2d"
    assert op == Activated(Conv2d(), ops.relu(X).op)
    assert op != Activated(Conv2d(stride=(2, 2)), ops.relu(X).op)
    assert op != Activated(Conv2d(), ops.tanh(X).op)


SPECIAL = [
    (name, value)
    for name in ("x", "w", "v", "weight", "bias", "mean", "var")
    for value in (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 1e30, -1e30)
    if not (name == "weight" and np.isinf(value))  # see `fold_batch_norm`
]


@pytest.mark.parametrize(("name", "value"), SPECIAL)
def test_a_folded_normalisation_passes_special_values(name, value):
    before = function(normalised(Conv2d()(X, W, V4)))
    after, _ = rewritten(before, fold_batch_norm)
    xs = statistics(before)
    xs[[x.name for x in before.inputs].index(name)].flat[1] = value
    assert_agrees(after(*xs), before(*xs))
