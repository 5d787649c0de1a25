"""Batch normalisation with its relu and residual, and their gradients: one op each."""

import numpy as np
import pytest
from fused_ops import (
    SPECIAL,
    assert_same_numbers,
    assert_untouched,
    float32,
    fused,
    names,
    with_gradients,
)

import minigraph as mg
from minigraph import nn, ops
from minigraph.graph import Graph, Item
from minigraph.ops.batch_norm import BatchNorm, BatchNormBackward, BatchNormRelu
from minigraph.passes.library.batch_norm import fuse_batch_norm
from minigraph.passes.library.cross_entropy import fuse_cross_entropy
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.common_subexpressions import share_common
from minigraph.passes.rewrite.simplification import simplify

SHAPE = (4, 3, 2, 2)


@pytest.fixture
def norm():
    """x, weight, bias, a residual r, and (y, mean, var) of the batch norm of the first three."""
    inputs = [mg.input(*of) for of in (("x", SHAPE), ("w", 3), ("b", 3), ("r", SHAPE))]
    return inputs, ops.batch_norm_with_statistics(*inputs[:3])


def arguments(special=None):
    xs = [float32(*x, seed=seed) for seed, x in enumerate((SHAPE, (3,), (3,), SHAPE))]
    if special is not None:
        xs[0][1, 0, 1, 1] = xs[1][1] = xs[2][2] = xs[3][2, 2, 0, 1] = special
    return xs


def test_the_relu_of_a_batch_norm_is_one_op_with_it(norm):
    inputs, (y, mean, _) = norm
    graph, fired = fused(fuse_batch_norm, inputs, [ops.relu(y), mean * 2])
    assert str(graph).splitlines()[1:] == [
        "  %0: float32[4,3,2,2], float32[3], float32[3] ="
        " batch_norm_relu[eps=1e-05, residual=False] x w b",
        "  %1: float32[4,3,2,2] = item[index=0] %0",
        "  %2: float32[3] = item[index=1] %0",
        "  %3: float32[] = const 2",
        "  %4: float32[3] = multiply %2 %3",
        "  return %1, %4",
    ]
    assert fired == {"batch_norm with relu": 1}


@pytest.mark.parametrize("first", [True, False])
def test_a_residual_is_added_in_the_same_op_whichever_operand_it_is(norm, first):
    inputs, (y, _, var) = norm
    r = inputs[3]
    graph, fired = fused(fuse_batch_norm, inputs, [var, ops.relu(r + y if first else y + r), var])
    assert str(graph).splitlines()[1:] == [
        "  %0: float32[4,3,2,2], float32[3], float32[3] ="
        " batch_norm_relu[eps=1e-05, residual=True] x w b r",
        "  %1: float32[3] = item[index=2] %0",
        "  %2: float32[4,3,2,2] = item[index=0] %0",
        "  return %1, %2, %1",
    ]
    assert fired == {"batch_norm with residual and relu": 1}


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("special", [None, *SPECIAL])
def test_batch_norm_with_relu_and_its_gradient_are_the_same_to_the_bit(norm, residual, special):
    inputs, (y, mean, var) = norm
    h = ops.relu(y + inputs[3] if residual else y)
    outputs = [h, mean, var, *with_gradients((h * inputs[3]).sum(), inputs)]
    graph, fired = fused(fuse_batch_norm, inputs, outputs)
    assert fired.total() == 2
    assert_same_numbers(graph, inputs, outputs, arguments(special))


def test_of_two_batch_norms_in_a_sum_one_is_fused_and_the_other_is_what_it_adds():
    x, z = mg.input("x", SHAPE), mg.input("z", SHAPE)
    h = ops.relu(ops.batch_norm_with_statistics(x)[0] + ops.batch_norm_with_statistics(z)[0])
    outputs = [h, *mg.grad((h * h).sum(), [x, z])]
    graph, _ = fused(fuse_batch_norm, [x, z], outputs)
    assert names(graph)[:2] == ["batch_norm", "batch_norm_relu"]
    assert names(graph)[-2:] == ["batch_norm_relu_backward", "batch_norm_backward"]
    assert {"relu", "where", "less_equal"}.isdisjoint(names(graph))
    assert_same_numbers(graph, [x, z], outputs, [float32(*SHAPE), float32(*SHAPE, seed=1)])


NORM_NOT_FUSED = {
    "y has another reader": lambda y, mean, var, r: [ops.relu(y), y * 2],
    "y is an output": lambda y, mean, var, r: [ops.relu(y), y],
    "y is added to itself": lambda y, mean, var, r: [ops.relu(y + y)],
    "y has two relus": lambda y, mean, var, r: [ops.relu(y), ops.relu(y)],
    "y is read twice": lambda y, mean, var, r: [ops.relu(y), ops.exp(Item(0)(y.inputs[0]))],
    "the sum has another reader": lambda y, mean, var, r: [ops.relu(z := y + r), z * 2],
    "the sum is an output": lambda y, mean, var, r: [ops.relu(z := y + r), z],
    "the residual is repeated": lambda y, mean, var, r: [ops.relu(y + r[:1])],
    "the residual is subtracted": lambda y, mean, var, r: [ops.relu(y - r)],
    "another function follows": lambda y, mean, var, r: [ops.sigmoid(y), ops.tanh(y + r)],
    "no function follows": lambda y, mean, var, r: [y + r],
    "the relu is that of the mean": lambda y, mean, var, r: [ops.relu(mean), ops.relu(mean + var)],
    "the residual needs the mean": lambda y, mean, var, r: [
        ops.relu(y + ops.exp(r + ops.reshape(mean, (1, 3, 1, 1))))
    ],
}


@pytest.mark.parametrize("why", NORM_NOT_FUSED)
def test_a_batch_norm_is_left_alone_where(norm, why):
    inputs, results = norm
    assert_untouched(fuse_batch_norm, inputs, NORM_NOT_FUSED[why](*results, inputs[3]))


def test_batch_norms_whose_residuals_need_the_mean_of_one_another_are_left_alone(norm):
    inputs, (y, mean, _) = norm
    x, _, _, r = inputs
    z, other, _ = ops.batch_norm_with_statistics(ops.exp(x))
    first = ops.relu(y + (r + ops.reshape(other, (1, 3, 1, 1))))
    second = ops.relu(z + (r * ops.reshape(mean, (1, 3, 1, 1))))
    assert_untouched(fuse_batch_norm, inputs, [first, second])


def test_inference_is_left_alone(norm):
    inputs, _ = norm
    assert_untouched(fuse_batch_norm, inputs, [ops.relu(ops.batch_norm(*inputs[:3]))])


# ---------------------------------------------------------------- gradients of batch normalisation


def backward(dz, x, w, mean, var):
    return BatchNormBackward(1e-3).results(dz, x, w, mean, var)


@pytest.fixture
def gradient():
    """dy, y, and x, weight, mean, var of a batch norm."""
    shapes = {"dy": SHAPE, "y": SHAPE, "x": SHAPE, "w": 3, "mean": 3, "var": 3}
    return [mg.input(name, shape) for name, shape in shapes.items()]


def test_the_gradients_of_a_relu_and_a_batch_norm_are_one_op(gradient):
    dy, y, *rest = gradient
    dx, dw, db = backward(ops.where(y <= 0, 0, dy), *rest)
    graph, fired = fused(fuse_batch_norm, gradient, [db, dx, dw])
    assert str(graph).splitlines()[1:] == [
        "  %0: float32[4,3,2,2], float32[3], float32[3] ="
        " batch_norm_relu_backward[eps=0.001, residual=False] dy y x w mean var",
        "  %1: float32[3] = item[index=2] %0",
        "  %2: float32[4,3,2,2] = item[index=0] %0",
        "  %3: float32[3] = item[index=1] %0",
        "  return %1, %2, %3",
    ]
    assert fired == {"batch_norm_backward with relu": 1}


def test_the_gradient_between_them_is_a_result_where_others_read_it(gradient):
    dy, y, *rest = gradient
    dz = ops.where(y <= 0, 0, dy)
    first, second = backward(dz, *rest), backward(dz, *rest)
    graph, fired = fused(fuse_batch_norm, gradient, [dz * 2, first[0], second[0]])
    assert str(graph).splitlines()[1:] == [
        "  %0: float32[4,3,2,2], float32[3], float32[3], float32[4,3,2,2] ="
        " batch_norm_relu_backward[eps=0.001, residual=True] dy y x w mean var",
        "  %1: float32[4,3,2,2] = item[index=3] %0",
        "  %2: float32[] = const 2",
        "  %3: float32[4,3,2,2] = multiply %1 %2",
        "  %4: float32[4,3,2,2] = item[index=0] %0",
        "  %5: float32[4,3,2,2], float32[3], float32[3] ="
        " batch_norm_backward[eps=0.001] %1 x w mean var",
        "  %6: float32[4,3,2,2] = item[index=0] %5",
        "  return %3, %4, %6",
    ]
    assert fired == {"batch_norm_backward with relu": 1}


def test_a_gradient_that_a_whole_image_shares_is_broadcast(gradient):
    dy, y, *rest = gradient
    outputs = backward(ops.where(y <= 0, 0, dy[:, :, :1, :1]), *rest)
    graph, fired = fused(fuse_batch_norm, gradient, outputs)
    assert "broadcast_to" in names(graph) and fired.total() == 1
    xs = [float32(*x.shape, seed=i) ** 2 for i, x in enumerate(gradient)]
    assert_same_numbers(graph, gradient, outputs, xs)


GRADIENT_NOT_FUSED = {
    "the limit is not 0": lambda dy, y, *rest: backward(ops.where(y <= 1, 0, dy), *rest),
    "the limit is excluded": lambda dy, y, *rest: backward(ops.where(y < 0, 0, dy), *rest),
    "the rest is not 0": lambda dy, y, *rest: backward(ops.where(y <= 0, 1, dy), *rest),
    "the choice is reversed": lambda dy, y, *rest: backward(ops.where(y <= 0, dy, 0), *rest),
    "y is repeated": lambda dy, y, *rest: backward(ops.where(y[:1] <= 0, 0, dy), *rest),
    "there is no relu": lambda dy, y, *rest: backward(dy, *rest),
    "x needs what others read": lambda dy, y, x, *rest: [
        backward(z := ops.where(y <= 0, 0, dy), ops.exp(z), *rest)[0],
        z,
    ],
}


@pytest.mark.parametrize("why", GRADIENT_NOT_FUSED)
def test_the_gradient_of_a_batch_norm_is_left_alone_where(gradient, why):
    assert_untouched(fuse_batch_norm, gradient, GRADIENT_NOT_FUSED[why](*gradient))


@pytest.mark.parametrize("op", [BatchNorm(1e-3), BatchNormRelu(1e-3, residual=False)], ids=str)
def test_a_gradient_is_built_for_those_results_only_that_are_read(norm, op):
    inputs, _ = norm
    y, mean, _ = op.results(*inputs[:3])
    (of_mean,), (of_y,) = (mg.grad(ops.sum(z * z), inputs[:1]) for z in (mean, y))
    assert {"batch_norm_backward", "less_equal", "square"}.isdisjoint(names(Graph((), (of_mean,))))
    xs = arguments()
    (got,) = Graph(tuple(inputs), (of_mean,))(*xs)
    channel = xs[0].mean((0, 2, 3), keepdims=True) * (2 / (xs[0].size / 3))
    np.testing.assert_allclose(got, np.broadcast_to(channel, SHAPE), rtol=1e-5)
    zeros = [
        n for n in Graph((), (of_y,)) if n.op.name == "broadcast_to" and not n.inputs[0].inputs
    ]
    assert not zeros


# ---------------------------------------------------------------- networks


def residual_net(blocks):
    """(inputs, outputs): the loss, its gradients and the new running statistics."""
    nn.manual_seed(0)
    x, labels = mg.input("x", (2, 4, 3, 3)), mg.input("labels", (2,), "int64")
    h, norms = x, []
    for _ in range(blocks):
        norms += [nn.BatchNorm2d(4), nn.BatchNorm2d(4)]
        h = ops.relu(norms[-1](ops.relu(norms[-2](h * 2)) * 3) + h)
    loss = ops.cross_entropy(h.mean((2, 3)), labels)
    parameters = [p for norm in norms for p in norm.parameters()]
    updates = [v for norm in norms for v in norm.updates().values()]
    return [x, labels], [*with_gradients(loss, [x, *parameters]), *updates]


@pytest.mark.parametrize("before", [(), (simplify, share_common)], ids=["as written", "simplified"])
def test_all_batch_norms_of_a_residual_network_are_fused_and_the_loss_is(before):
    inputs, outputs = residual_net(3)
    graph = Graph(tuple(inputs), tuple(outputs))
    for rewrite in before:
        graph = rewrite(graph, Notes())
    graph, fired = fused(fuse_batch_norm, inputs, graph.outputs)
    assert fired == {
        "batch_norm with relu": 3,
        "batch_norm with residual and relu": 3,
        "batch_norm_backward with relu": 6,
    }
    assert {"relu", "where", "batch_norm", "batch_norm_backward"} & set(names(graph)) == {"where"}
    xs = [float32(2, 4, 3, 3), np.array([1, 3])]
    assert_same_numbers(graph, inputs, outputs, xs, 1e-5 if before else 0)
    graph, fired = fused(fuse_cross_entropy, inputs, graph.outputs)
    assert fired == {"cross_entropy": 1, "cross_entropy_backward": 1}
    assert {"where", "one_hot", "log_softmax", "exp"}.isdisjoint(names(graph))
    assert_same_numbers(graph, inputs, outputs, xs, 1e-5)


def test_depth_is_not_limited_by_the_python_stack():
    inputs, outputs = residual_net(300)
    _, fired = fused(fuse_batch_norm, inputs, outputs)
    assert fired.total() == 1200


def test_a_fused_op_has_the_line_of_the_norm_and_the_turn_of_the_relu(norm):
    inputs, (y, _, var) = norm
    h = ops.relu(y + inputs[3])
    graph, _ = fused(fuse_batch_norm, inputs, [var, h])
    made = graph.outputs[1].inputs[0]
    assert (made.source, made.turn[0]) == (y.source, h.turn[0])
