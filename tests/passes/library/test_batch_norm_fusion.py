"""Batch normalisation with its relu and residual, and their gradients: one op each."""

import numpy as np
import pytest
from heavy_nodes import real as float32

import minigraph as mg
from minigraph import nn, ops
from minigraph.graph import Graph, Item
from minigraph.ops.batch_norm import BatchNorm, BatchNormRelu
from minigraph.passes.library.batch_norm import fuse_batch_norm
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.simplification import share_common, simplify

SHAPE = (4, 3, 2, 2)
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 1e-30, 1e30, -3e38]


def fused(rewrite, inputs, outputs):
    """Return the graph after the pass, and the rewrites; a second run must do nothing."""
    notes, again = Notes(), Notes()
    graph = rewrite(Graph(tuple(inputs), tuple(outputs)), notes)
    graph.check()
    assert str(rewrite(graph, again)) == str(graph)
    assert not again.fired
    return graph, notes.fired


def assert_same_numbers(graph, inputs, outputs, xs, tolerance=0.0):
    """Assert that the graph computes the results of the original, exactly or with a tolerance."""
    for result, want in zip(graph(*xs), Graph(tuple(inputs), tuple(outputs))(*xs), strict=True):
        assert result.dtype == want.dtype
        np.testing.assert_allclose(result, want, rtol=tolerance, atol=tolerance)
        if not tolerance:
            np.testing.assert_array_equal(
                np.signbit(result[want == 0]), np.signbit(want[want == 0])
            )


def names(graph):
    return [node.op.name for node in graph if node.inputs and not isinstance(node.op, Item)]


def with_gradients(loss, wrt):
    return [loss, *mg.grad(loss, wrt)]


@pytest.fixture
def norm():
    """Return x, weight, bias, a residual, and (y, mean, var) of their batch norm."""
    inputs = [mg.input(*of) for of in (("x", SHAPE), ("w", 3), ("b", 3), ("r", SHAPE))]
    return inputs, ops.batch_norm_with_statistics(*inputs[:3])


def arguments(special=None):
    xs = [float32(*x, seed=seed) for seed, x in enumerate((SHAPE, (3,), (3,), SHAPE))]
    if special is not None:
        xs[0][1, 0, 1, 1] = xs[1][1] = xs[2][2] = xs[3][2, 2, 0, 1] = special
    return xs


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("special", [None, *SPECIAL])
def test_batch_norm_with_relu_and_its_gradient_are_the_same_to_the_bit(norm, residual, special):
    inputs, (y, mean, var) = norm
    h = ops.relu(y + inputs[3] if residual else y)
    outputs = [h, mean, var, *with_gradients((h * inputs[3]).sum(), inputs)]
    graph, fired = fused(fuse_batch_norm, inputs, outputs)
    assert fired.total() == 2
    assert_same_numbers(graph, inputs, outputs, arguments(special))


# ---------------------------------------------------------------- gradients of batch normalisation


@pytest.mark.parametrize("op", [BatchNorm(1e-3), BatchNormRelu(1e-3, residual=False)], ids=str)
def test_a_gradient_is_built_for_those_results_only_that_are_read(norm, op):
    inputs, _ = norm
    y, mean, _ = op.results(*inputs[:3])
    (of_mean,), (of_y,) = (mg.grad(ops.sum(z * z), inputs[:1]) for z in (mean, y))
    assert {"batch_norm_backward", "less_equal", "square"}.isdisjoint(names(Graph((), (of_mean,))))
    xs = arguments()
    (result,) = Graph(tuple(inputs), (of_mean,))(*xs)
    channel = xs[0].mean((0, 2, 3), keepdims=True) * (2 / (xs[0].size / 3))
    np.testing.assert_allclose(result, np.broadcast_to(channel, SHAPE), rtol=1e-5)
    zeros = [
        n for n in Graph((), (of_y,)) if n.op.name == "broadcast_to" and not n.inputs[0].inputs
    ]
    assert not zeros


# ---------------------------------------------------------------- networks


def residual_net(blocks):
    """Return (inputs, outputs): the outputs are the loss, gradients and new running statistics."""
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
    assert {"relu", "where", "batch_norm", "batch_norm_backward"}.isdisjoint(names(graph))
    xs = [float32(2, 4, 3, 3), np.array([1, 3])]
    assert_same_numbers(graph, inputs, outputs, xs, 1e-5 if before else 0)


def test_depth_is_not_limited_by_the_python_stack():
    inputs, outputs = residual_net(300)
    _, fired = fused(fuse_batch_norm, inputs, outputs)
    assert fired.total() == 1200


def test_a_fused_op_has_the_line_of_the_norm_and_the_turn_of_the_relu(norm):
    inputs, (y, _, var) = norm
    h = ops.relu(y + inputs[3])
    graph, _ = fused(fuse_batch_norm, inputs, [var, h])
    norm_relu = graph.outputs[1].inputs[0]
    assert (norm_relu.source, norm_relu.order[0]) == (y.source, h.order[0])
