"""Rows that are reduced across the order in memory: as a layer norm over the channels of images."""

import numpy as np
import pytest
from fused_units import IMAGES, reasons, units
from needs import needs_compiler
from rewriting import run

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph
from minigraph.jit.fused import Fused
from minigraph.ops.shape import PermuteDims
from minigraph.passes.kernels.fusion import fuse_kernels
from minigraph.passes.kernels.group import ACROSS

LAST = ops.permute_dims(IMAGES, (0, 2, 3, 1))  # the channels


def centered(x):
    return x - x.mean(-1, keepdims=True)


def made_of(y):
    graph, _ = run(fuse_kernels, Graph((IMAGES,), (y,)))
    return graph


def permuted_inside(graph):
    """The permutations of axes that kernels read through."""
    kernels = [node.op.graph for node in graph if isinstance(node.op, Fused)]
    return [x.op.name for each in kernels for x in each if isinstance(x.op, PermuteDims)]


def test_a_kernel_does_not_read_across_the_rows_that_it_reduces():
    y = centered(LAST)
    assert ("permute_dims", ACROSS) in [(made, why) for made, _, why in reasons(y)]
    graph = made_of(y)
    assert len(units(graph)) == 1 and not permuted_inside(graph)


def test_a_kernel_does_not_write_across_the_rows_that_it_reduces():
    y = IMAGES + ops.permute_dims(centered(LAST), (0, 3, 1, 2))
    assert ACROSS in [why for *_, why in reasons(y)]


def test_rows_that_stay_rows_are_read_through_a_view():
    y = centered(ops.permute_dims(IMAGES, (1, 0, 2, 3)))
    assert ACROSS not in [why for *_, why in reasons(y)]
    assert permuted_inside(made_of(y)) == ["permute_dims"]


def test_what_reduces_nothing_is_read_through_any_view():
    y = LAST * 2 + 1
    assert not reasons(y)
    assert permuted_inside(made_of(y)) == ["permute_dims"]


@needs_compiler
@pytest.mark.parametrize("level", [2, 3])
def test_the_kernel_reads_a_copy(level):
    x = mg.input("x", (2, 96, 12, 10))
    y = ops.layer_norm(ops.permute_dims(x, (0, 2, 3, 1)), (96,))
    values = np.random.default_rng(0).standard_normal(x.shape).astype("float32")
    step = mg.comp_graph("cpu", {"graph_opt_level": level}).compile([x], y)
    want = mg.comp_graph("reference").compile([x], y)(values)
    np.testing.assert_allclose(step(values), want, rtol=1e-5, atol=1e-6)
    assert "copy" in [kernel.name for kernel in step.profile(values).kernels]
