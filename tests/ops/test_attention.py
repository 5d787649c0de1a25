"""Attention whose gradients compute the weights again: numbers, and memory."""

import numpy as np
import pytest

import minigraph as mg
from minigraph import ops
from minigraph.ops import attention

SHAPES = {  # of query, key and value
    "heads": ((2, 3, 9, 4), (2, 3, 9, 4), (2, 3, 9, 5)),
    "more keys": ((2, 5, 4), (2, 11, 4), (2, 11, 3)),
    "shared keys": ((2, 3, 8, 4), (2, 1, 8, 4), (1, 1, 8, 4)),
    "one query": ((1, 4), (7, 4), (7, 4)),
}
MASKS = {
    "none": lambda rng, lengths: (None, False),
    "causal": lambda rng, lengths: (None, True),
    "bools": lambda rng, lengths: (rng.random(lengths) > 0.3, False),
    "of keys": lambda rng, lengths: (rng.random(lengths[1:]) > 0.3, False),
    "floats": lambda rng, lengths: (rng.normal(size=lengths).astype(np.float32), False),
}


@pytest.fixture
def in_blocks(monkeypatch):
    """Let each attention have many scores, and blocks of two queries."""
    monkeypatch.setattr(attention, "MANY_SCORES", 0)
    monkeypatch.setattr(attention, "RECOMPUTED_BLOCK", 2)


def results(shapes, mask, level, orders=1):
    """Return the values of attention and its gradients, the mask's too if it is a parameter."""
    rng = np.random.default_rng(0)
    values = [rng.normal(size=shape) for shape in shapes]
    xs = [mg.input(name, shape, "float64") for name, shape in zip("qkv", shapes, strict=True)]
    array, is_causal = MASKS[mask](rng, (shapes[0][-2], shapes[1][-2]))
    wrt = [*xs]
    if mask == "floats":
        array = mg.Parameter(array.astype(np.float64), name="mask")
        wrt.append(array)
    y = ops.scaled_dot_product_attention(*xs, attn_mask=array, is_causal=is_causal)
    outputs = [y]
    for _ in range(orders):
        gradients = mg.grad(sum(ops.sum(ops.sin(z)) for z in outputs), wrt)
        outputs = gradients
    cg = mg.comp_graph("cpu", {"graph_opt_level": level, "autotune": "off"})
    return cg.compile(xs, [y, *outputs])(*values)


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_numbers_are_those_of_one_block(shapes, mask, level, monkeypatch, request):
    expected = results(shapes, mask, 0)
    request.getfixturevalue("in_blocks")
    for y, z in zip(results(shapes, mask, level), expected, strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-12, atol=1e-13)


def test_second_derivatives_are_those_of_one_block(request):
    expected = results(SHAPES["heads"], "causal", 0, orders=2)
    request.getfixturevalue("in_blocks")
    for y, z in zip(results(SHAPES["heads"], "causal", 3, orders=2), expected, strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-11, atol=1e-12)


def test_one_expression_may_be_query_key_and_value(in_blocks):
    x = mg.input("x", (9, 4), "float64")
    value = np.random.default_rng(0).normal(size=(9, 4))
    (dx,) = mg.grad(ops.sum(ops.sin(ops.scaled_dot_product_attention(x, x, x))), [x])
    q, k, v = (mg.input(name, (9, 4), "float64") for name in "qkv")
    weights = ops.softmax(q @ k.T / 2, axis=-1)
    parts = mg.grad(ops.sum(ops.sin(weights @ v)), [q, k, v])
    found = mg.comp_graph().compile([x], dx)(value)
    expected = sum(mg.comp_graph().compile([q, k, v], parts)(value, value, value))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_the_weights_of_layers_do_not_wait_for_their_gradients():
    x = y = mg.input("x", (1024, 16))
    for _ in range(8):
        y = ops.scaled_dot_product_attention(y, y, y)
    (dx,) = mg.grad(ops.sum(y), [x])
    step = mg.comp_graph("cpu", {"graph_opt_level": 3, "autotune": "off"}).compile([x], dx)
    assert step.report().memory.arena_bytes < 6 << 20  # one layer has 4 MiB of weights


def test_the_gradients_of_keys_are_added_block_by_block():
    q, k, v = (mg.input(name, (2048, 16)) for name in "qkv")
    y = ops.scaled_dot_product_attention(q, k, v)
    step = mg.comp_graph("cpu", {"graph_opt_level": 3, "autotune": "off"}).compile(
        [q, k, v], mg.grad(ops.sum(ops.sin(y)), [q, k, v])
    )
    # Two blocks of 256 x 2048 scores take 4 MiB; eight gradients of keys and of values, 2.
    assert step.report().memory.arena_bytes < 5.5 * 2**20
