"""Which products run in the kernel of what reads them, and that results stay the same."""

import numpy as np
import pytest
from fused_units import of
from rewriting import run, values

import minigraph as mg
from minigraph import ops
from minigraph.jit.product import FusedProduct
from minigraph.passes.kernels.fusion import fuse_kernels
from minigraph.passes.kernels.products import Products, fuse_products
from minigraph.passes.levels import optimize, pipeline
from minigraph.passes.notes import Notes

X, Y = mg.input("x", (3, 40)), mg.input("y", (3, 50))
W, V = mg.input("w", (40, 50)), mg.input("v", (40, 50))
ROW, COLUMN = mg.input("row", (50,)), mg.input("column", (40, 1))
G = X.T @ Y
SMALL = Products(sides=0, least=0)


def fuse(graph, products=SMALL):
    return fuse_products(graph, Notes(), products)


def fused(*ys, products=SMALL):
    """The ops of the kernels that have a product, of graphs that compute the same."""
    before, _ = run(fuse_kernels, of(*ys))
    after, _ = run(lambda graph, notes: fuse_products(graph, notes, products), before)
    assert str(fuse(after, products)) == str(after)
    xs = [values(x.dtype, x.shape) for x in before.inputs]
    for new, old in zip(after(*xs), before(*xs), strict=True):
        np.testing.assert_array_equal(new, old)
    kernels = [node.op.graph for node in after if isinstance(node.op, FusedProduct)]
    return [" ".join(x.op.name for x in g if x.inputs and not x.op.is_view) for g in kernels]


def test_a_product_joins_the_kernel_that_reads_it():
    assert fused(W - 0.1 * G) == ["matmul multiply subtract"]
    assert fused(ops.relu(G)) == ["matmul relu"]
    assert fused(G * ROW + COLUMN) == ["matmul multiply add"]
    moved = W + G
    assert fused(moved, V * moved) == ["matmul add multiply"]


def test_a_product_of_bfloat16_is_rounded_in_the_kernel_that_reads_it():
    small = X.T.astype("bfloat16") @ Y.astype("bfloat16")
    assert fused(W - small.astype("float32")) == ["matmul astype astype subtract"]


def test_each_update_has_its_own_product():
    assert fused(W - G, V * (X.T * 2 @ Y)) == ["matmul subtract", "matmul multiply"]


def test_one_of_two_products_joins():
    assert fused(W - (G + X.T * 2 @ Y)) == ["matmul add subtract"]


@pytest.mark.parametrize(
    "ys",
    [
        (W - G, G),
        (W - G, ops.tanh(G.sum())),
        ((W - G) / ops.sqrt((G * G).sum()),),
        (ops.softmax(G),),
        (G.sum(0),),
        (G + G.T.reshape(40, 50),),
        (G * ops.random_uniform(G.shape),),
        (mg.input("a", (2, 3, 4)) @ mg.input("b", (2, 4, 5)) + 1,),
        (mg.input("a", (40, 3), "float64") @ mg.input("b", (3, 50), "float64") + 1,),
        (mg.input("a", (40, 3)) @ mg.input("b", (3, 1)) + 1,),
        (mg.input("a", (40, 3)) @ mg.input("b", (3, 16)) + 1,),
    ],
    ids=[
        "is-an-output",
        "read-twice",
        "clipped-by-its-norm",
        "rows-reduced",
        "columns-reduced",
        "read-in-two-orders",
        "random",
        "batch",
        "float64",
        "one-column",
        "one-block-of-lanes",
    ],
)
def test_others_stay_as_they_are(ys):
    before, _ = run(fuse_kernels, of(*ys))
    assert not [node for node in fuse(before) if isinstance(node.op, FusedProduct)]


def test_products_of_many_sums_and_small_ones_stay():
    assert fused(W - G, products=Products(depth=3, least=G.spec.nbytes)) == ["matmul subtract"]
    assert fused(W - G, products=Products(depth=2, least=0)) == []
    assert fused(W - G, products=Products(sides=14, least=0)) == []
    assert fused(W - G, products=Products(least=G.spec.nbytes + 1)) == []


def test_reasons_of_earlier_passes_for_leaving_the_product_are_gone():
    passes = pipeline(3, fast_math=False, jit=2, products=SMALL)
    stages = optimize(of(W - 0.1 * G), passes)
    fired = {record.name: record.fired for _, record in stages}
    assert fired["fuse_products"] == {"matmul in its reader": 1}
    assert not [stop for _, each in stages for stop in each.stops if stop.producer == "matmul"]
    without = optimize(of(W - 0.1 * G), pipeline(3, fast_math=False, jit=2))
    assert [stop for _, each in without for stop in each.stops if stop.producer == "matmul"]
