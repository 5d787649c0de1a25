"""Gradients agree with finite differences, and what ops expand to with what they mean."""

import numpy as np
import pytest
from elementwise_samples import ELEMENTWISE, accepts
from op_values import F32, F64, forward, inputs_like
from samples import LOOPS, SAMPLES, real

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph, Op
from minigraph.ops.custom_gradient import Recomputed, WithGradient
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.reduction import Prod
from minigraph.ops.shape import StopGradient


def weighted(results):
    """A scalar: the float results, each times random numbers of its shape."""
    return sum(
        ops.sum(y * np.random.default_rng(i).normal(size=y.shape))
        for i, y in enumerate(results)
        if y.dtype == F64
    )


def directional(loss, inputs, directions):
    """The derivative of `loss` when the inputs move in their directions, as an expression."""
    slopes = mg.grad(loss, inputs)
    return sum(ops.sum(g * d) for g, d in zip(slopes, directions, strict=True))


def finite_difference(graph, xs, directions, eps=1e-6):
    def f(step):
        moved = [x if d is None else x + step * d for x, d in zip(xs, directions, strict=True)]
        return graph(*moved)[0]

    return (f(eps) - f(-eps)) / (2 * eps)


def places_of_floats(arrays):
    return [i for i, x in enumerate(arrays) if x.dtype == F64]


def has_derivative(op, xs):
    """Whether a float depends on a float, and the gradient is meant to be the derivative."""
    results = op.results(*inputs_like(xs))
    custom = isinstance(op, StopGradient | WithGradient | Recomputed)
    return bool(places_of_floats(xs) and places_of_floats(results)) and not custom


SMOOTH = {name: sample for name, sample in SAMPLES.items() if has_derivative(*sample)}
LINE = np.linspace(0.0, 1, 2)


def assert_differentiates(op, xs, order):
    """Assert that the derivatives up to an order, each in a random direction, are right."""
    nodes = inputs_like(xs)
    floats = places_of_floats(xs)
    results = op.results(*nodes)
    wrt = [nodes[i] for i in floats]
    rng = np.random.default_rng(7)
    f = weighted(results)
    for _ in range(order):
        directions = [None] * len(xs)
        for i in floats:
            directions[i] = rng.normal(size=xs[i].shape)
        f, before = directional(f, wrt, [directions[i] for i in floats]), f
        numeric = finite_difference(Graph(nodes, (before,)), xs, directions)
        (analytic,) = Graph(nodes, (f,))(*xs)
        np.testing.assert_allclose(analytic, numeric, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("op", "xs"), SMOOTH.values(), ids=SMOOTH)
def test_first_and_second_derivatives_agree_with_finite_differences(op, xs):
    assert_differentiates(op, xs, order=2)


@pytest.mark.parametrize(
    "op",
    [
        op
        for op in ELEMENTWISE.values()
        if op.operands == ("x",) and accepts(op, F64) and has_derivative(op, [LINE])
    ],
    ids=lambda op: op.name,
)
def test_grad_agrees_over_a_wide_range(op):
    """Also beyond kinks that the class does not name."""
    low, high = (-9.7, 9.3) if op.domain == Elementwise.domain else op.domain
    assert_differentiates(op, [np.linspace(low, high, 400)], order=1)


PLACES_OF_ZEROS = [[], [0], [1, 2], [1, 5], [0, 2, 7], range(12)]


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("places", PLACES_OF_ZEROS, ids=str)
def test_products_with_zeros_have_derivatives_of_every_order(places, axes):
    x = real(3, 4)
    x.flat[list(places)] = 0
    assert_differentiates(Prod(axes), [x], 3)


def test_the_derivative_of_a_product_divides_nothing():
    x = np.array([np.inf, 2, 3], F32)
    (dx,) = mg.grad(ops.prod(node := mg.input("x", (3,))), [node])
    np.testing.assert_array_equal(Graph((node,), (dx,))(x)[0], [6, np.inf, np.inf])
    x = np.array([1e-30, 1e-30, 2], F32)
    np.testing.assert_allclose(Graph((node,), (dx,))(x)[0], [2e-30, 2e-30, 0], rtol=1e-6)


EXPANDED = [name for name, (op, _) in SAMPLES.items() if type(op).expand is not Op.expand]


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("name", EXPANDED)
def test_expand_agrees_with_forward(name, dtype):
    op, xs = SAMPLES[name]
    xs = [x.astype(dtype) if x.dtype == F64 and name not in LOOPS else x for x in xs]
    nodes = inputs_like(xs)
    graph = Graph(nodes, op.expand(*nodes))
    graph.check()
    tolerance = 1e-12 if dtype == F64 else 2e-6
    for result, want in zip(graph(*xs), forward(op, xs), strict=True):
        assert result.dtype == want.dtype
        np.testing.assert_allclose(result, want, rtol=tolerance, atol=tolerance)
