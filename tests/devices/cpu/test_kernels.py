"""The CPU's kernels of heavy ops, oneDNN's where it has a fast one, else ours, mean the same."""

import pytest
from heavy_nodes import assert_agrees
from heavy_samples import SAMPLES, compiled, kernel_of, meaning, takes
from needs import needs_onednn

import minigraph as mg
from minigraph.devices.cpu import primitives

pytestmark = needs_onednn


def test_every_op_that_onednn_computes_has_samples():
    assert set(primitives.PRIMITIVES) <= {type(op) for op, _ in SAMPLES.values()}


@pytest.mark.parametrize("kind", primitives.PRIMITIVES, ids=lambda kind: kind.name)
def test_onednn_computes_some_of_the_samples_of_each_op(kind):
    assert any(takes(op, *xs) for op, xs in SAMPLES.values() if type(op) is kind)


@pytest.mark.parametrize(("op", "xs"), SAMPLES.values(), ids=SAMPLES)
def test_kernel_agrees_with_the_meaning(op, xs):
    """And is not oneDNN's last resort, which is thousands of times slower."""
    function = compiled(op, *xs)
    assert "ref" not in kernel_of(function, op.name)
    expected = meaning(op, *xs)
    assert_agrees(function(*xs), expected)
    assert_agrees(function(*xs), expected)  # its memory is used again


@pytest.mark.parametrize("name", ["conv2d-on-two-threads", "matmul-on-two-threads"])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_kernel_agrees_with_any_number_of_threads(name, threads):
    op, xs = SAMPLES[name]
    inputs = [mg.input(f"x{i}", x.shape) for i, x in enumerate(xs)]
    cg = mg.comp_graph("cpu", {"num_threads": threads})
    assert_agrees([cg.compile(inputs, op(*inputs))(*xs)], meaning(op, *xs))
