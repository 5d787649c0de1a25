"""Library fusion: biases, activations and normalisations join convolutions and products."""

import numpy as np
import pytest
from heavy_nodes import assert_agrees
from products import (
    CONV,
    PRODUCT,
    V4,
    V5,
    VECTORS,
    A,
    B,
    W,
    X,
    assert_left_alone,
    assert_same_values,
    function,
    normalised,
    rewritten,
    statistics,
    text,
)

import minigraph as mg
from minigraph import ops
from minigraph.ops.activation import Activated
from minigraph.ops.conv import Conv2d
from minigraph.ops.matmul import Matmul
from minigraph.passes.library.convolution import fold_batch_norm, fuse_activation, fuse_bias

BIASES = {
    "channels": (CONV, (4, 1, 1), lambda v: v, "reshape(v)"),
    "channels of one image": (CONV, (1, 4, 1, 1), lambda v: v, "reshape(v)"),
    "vector": (CONV, (4,), lambda v: v.reshape(4, 1, 1), "v"),
    "reshaped matrix": (CONV, (2, 2), lambda v: v.reshape(4, 1, 1), "reshape(reshape(v))"),
    "repeated": (CONV, (4, 1, 1), lambda v: ops.broadcast_to(v, (2, 4, 4, 5)), "reshape(v)"),
    "repeated vector": (
        CONV,
        (4,),
        lambda v: ops.broadcast_to(v.reshape(4, 1, 1), (4, 4, 1)),
        "v",
    ),
    "columns": (PRODUCT, (5,), lambda v: v, "v"),
    "row": (PRODUCT, (1, 5), lambda v: v, "reshape(v)"),
    "repeated columns": (PRODUCT, (5,), lambda v: ops.broadcast_to(v, (4, 5)), "v"),
}


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize(("product", "size", "show", "operand"), BIASES.values(), ids=BIASES)
def test_a_bias_joins_its_product(product, size, show, operand, flipped):
    v = mg.input("v", size)
    y = show(v) + product if flipped else product + show(v)
    before = function(y)
    after, fired = rewritten(before, fuse_bias)
    name, (first, second) = product.name, product.inputs
    assert text(after.outputs[0]) == f"{name}({first.name}, {second.name}, {operand})"
    assert fired == {f"{name} with bias": 1}
    assert_same_values(before, after)


@pytest.mark.parametrize("size", [(2, 4, 3), (1, 4, 3), (2, 2, 2, 3), (3,)])
def test_the_bias_of_a_linear_layer_joins_however_many_axes_come_first(size):
    x, w, v = mg.input("x", size), mg.input("w", (5, 3)), mg.input("v", (5,))
    before = function(ops.linear(x, w, v))
    after, _ = rewritten(before, fuse_bias)
    assert text(after.outputs[0]) == "reshape(matmul(reshape(x), permute_dims(w), v))"
    assert_same_values(before, after)


def test_the_bias_of_a_batched_product_runs_along_its_columns():
    x, y, v = mg.input("x", (2, 1, 4, 3)), mg.input("y", (5, 3, 4)), mg.input("v", (4,))
    before = function(v + x @ y)
    after, _ = rewritten(before, fuse_bias)
    assert text(after.outputs[0]) == "matmul(x, y, v)"
    assert_same_values(before, after)


SQUARE = Conv2d(padding=(1, 1))(mg.input("s", (1, 4, 4, 4)), mg.input("t", (4, 4, 3, 3)))
ROW = mg.input("r", (1, 3)) @ B
NO_BIAS = {
    "a scalar on a convolution": ((), lambda v: [CONV + v]),
    "a scalar on a product": ((), lambda v: [PRODUCT + v]),
    "every element": ((2, 4, 4, 5), lambda v: [CONV + v]),
    "the width": ((4,), lambda v: [SQUARE + v]),
    "the height": ((4, 1), lambda v: [SQUARE + v]),
    "the batch": ((2, 1, 1, 1), lambda v: [CONV + v]),
    "the rows": ((4, 1), lambda v: [PRODUCT + v]),
    "a product that it repeats": ((3, 5), lambda v: [ROW + v]),
    "a product that is repeated": ((5,), lambda v: [ROW + ops.broadcast_to(v, (3, 5))]),
    "channels of a reshaped convolution": (
        (5, 1, 1),
        lambda v: [CONV.reshape(2, 5, 4, 4) + v],
    ),
    "columns of a reshaped product": ((10,), lambda v: [PRODUCT.reshape(2, 10) + v]),
    "a bias that is there": ((5,), lambda v: [Matmul()(A, B, v) + v]),
    "subtracted": ((5,), lambda v: [PRODUCT - v]),
    "subtracted from": ((5,), lambda v: [v - PRODUCT]),
    "of an output": ((5,), lambda v: [PRODUCT + v, PRODUCT]),
    "of an output in another shape": (
        (5,),
        lambda v: [(y := PRODUCT.reshape(2, 2, 5)) + v, y],
    ),
    "read twice": ((5,), lambda v: [(PRODUCT + v) * PRODUCT]),
    "read twice in another shape": ((5,), lambda v: [PRODUCT.reshape(2, 2, 5) + v, PRODUCT.sum()]),
    "itself": ((), lambda v: [PRODUCT + PRODUCT]),
}


@pytest.mark.parametrize(("size", "build"), NO_BIAS.values(), ids=NO_BIAS)
def test_no_bias_is(size, build):
    assert_left_alone(function(*build(mg.input("v", size))), fuse_bias)


def test_of_two_biases_the_first_joins():
    u, v = mg.input("u", (5,)), mg.input("v", (5,))
    after, fired = rewritten(function(PRODUCT + u + v), fuse_bias)
    assert text(after.outputs[0]) == "add(matmul(a, b, u), v)"
    assert fired == {"matmul with bias": 1}


def test_a_fused_bias_keeps_the_line_and_the_turn_of_its_sum():
    y = PRODUCT + mg.input("v", (5,))
    (fused,) = rewritten(function(y), fuse_bias)[0].outputs
    assert fused.source == y.source
    assert fused.turn[0] == y.turn[0]


# ---------------------------------------------------------------- activations


ACTIVATED = {
    "conv2d": (ops.relu(CONV), "conv2d+relu(x, w)"),
    "conv2d with bias": (ops.tanh(Conv2d()(X, W, V4)), "conv2d+tanh(x, w, v)"),
    "matmul": (ops.sigmoid(PRODUCT), "matmul+sigmoid(a, b)"),
    "matmul with bias": (ops.relu(Matmul()(A, B, V5)), "matmul+relu(a, b, v)"),
    "any function": (-PRODUCT, "matmul+negative(a, b)"),
    "another shape": (ops.relu(CONV.reshape(2, -1)), "reshape(conv2d+relu(x, w))"),
    "the first of two": (ops.exp(ops.relu(PRODUCT)), "exp(matmul+relu(a, b))"),
}


@pytest.mark.parametrize(("y", "expected"), ACTIVATED.values(), ids=ACTIVATED)
def test_an_activation_joins_its_product(y, expected):
    before = function(y)
    after, fired = rewritten(before, fuse_activation)
    assert text(after.outputs[0]) == expected
    assert list(fired.values()) == [1]
    assert_same_values(before, after)


NO_ACTIVATION = {
    "of two operands": lambda: [ops.maximum(PRODUCT, 0.0)],
    "of another dtype": lambda: [PRODUCT.astype("float64")],
    "that tests": lambda: [ops.isnan(PRODUCT)],
    "of an output": lambda: [ops.relu(PRODUCT), PRODUCT],
    "of an output in another shape": lambda: [ops.relu(y := PRODUCT.reshape(20)), y],
    "of what is read twice": lambda: [ops.relu(PRODUCT) * PRODUCT],
    "of what is read twice by itself": lambda: [ops.relu(PRODUCT), ops.relu(PRODUCT)],
    "of transposed elements": lambda: [ops.relu(PRODUCT.T)],
    "of another op": lambda: [ops.relu(ops.softmax(PRODUCT))],
}


@pytest.mark.parametrize("build", NO_ACTIVATION.values(), ids=NO_ACTIVATION)
def test_no_activation_is_one(build):
    assert_left_alone(function(*build()), fuse_activation)


def test_reports_call_an_activated_op_by_the_name_of_the_op():
    op = Activated(Conv2d(), ops.relu(X).op)
    assert op.name == "conv2d"
    assert op == Activated(Conv2d(), ops.relu(X).op)
    assert op != Activated(Conv2d(stride=(2, 2)), ops.relu(X).op)
    assert op != Activated(Conv2d(), ops.tanh(X).op)


# ---------------------------------------------------------------- normalisations


def test_a_normalisation_joins_the_weights_and_the_bias_of_its_convolution():
    before = function(normalised(CONV))
    after, fired = rewritten(before, fold_batch_norm)
    scale = "multiply(weight, rsqrt(add(var, constant)))"
    weights = f"multiply(w, reshape({scale}))"
    bias = f"add(multiply(negative(mean), {scale}), bias)"
    assert text(after.outputs[0]) == f"conv2d(x, {weights}, {bias})"
    assert fired == {"batch_norm_inference into conv2d": 1}
    assert_same_values(before, after, statistics(before))


def test_a_normalisation_joins_a_bias_that_is_there():
    before = function(normalised(Conv2d()(X, W, V4)))
    after, _ = rewritten(before, fold_batch_norm)
    assert "multiply(subtract(v, mean), " in text(after.outputs[0])
    assert_same_values(before, after, statistics(before))


def test_one_normalisation_after_another_joins_too():
    before = function(normalised(normalised(CONV)))
    after, fired = rewritten(before, fold_batch_norm)
    assert fired == {"batch_norm_inference into conv2d": 2}
    assert_same_values(before, after, statistics(before))


WIDE = [mg.input(f"x{i}", x.shape, "float16") for i, x in enumerate((X, W, *VECTORS))]
NO_FOLD = {
    "of an output": lambda: [normalised(CONV), CONV],
    "of what is read twice": lambda: [normalised(CONV) + CONV],
    "of another op": lambda: [normalised(ops.relu(CONV))],
    "of few results with many weights": lambda: [normalised(Conv2d()(X[:, :, :3, :3], W))],
    "without a safe distance from 0": lambda: [normalised(CONV, 0.0)],
    "of half precision": lambda: [
        ops.batch_norm(Conv2d()(*WIDE[:2]), *WIDE[4:], *WIDE[2:4], eps=1e-3)
    ],
}


@pytest.mark.parametrize("build", NO_FOLD.values(), ids=NO_FOLD)
def test_no_normalisation_is_folded(build):
    assert_left_alone(function(*build()), fold_batch_norm)


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


# ---------------------------------------------------------------- whole networks


def test_thousands_of_layers_are_fused():
    x, w, v = mg.input("x", (1, 1)), mg.input("w", (1, 1)), mg.input("v", (1,))
    y = x
    for _ in range(5000):
        y = ops.relu(y @ w + v)
    _, fired = rewritten(function(y), fuse_bias, fuse_activation)
    assert fired == {"matmul with bias": 5000, "matmul with relu": 5000}
