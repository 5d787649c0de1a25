"""Reverse mode: what `mg.grad` gives for graphs of any form.  The ops' own gradients: test_ops."""

import inspect

import numpy as np
import pytest
from samples import real

import minigraph as mg
from minigraph import GraphError, ops
from minigraph.graph import Graph, Op, toposort
from minigraph.graph.location import layer


def inputs(*shapes, dtype="float64"):
    return [mg.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)]


def values(nodes, feeds):
    return Graph(tuple(feeds), tuple(nodes))(*feeds.values())


def assert_is_gradient(loss, feeds):
    """mg.grad agrees with finite differences, for each input along a random direction."""
    graph = Graph(tuple(feeds), (loss,))
    grads = values(mg.grad(loss, list(feeds)), feeds)
    for i, (x, g) in enumerate(zip(feeds.values(), grads, strict=True)):
        direction = np.random.default_rng(i).normal(size=x.shape)
        ends = []
        for step in (1e-6, -1e-6):
            moved = [v + step * direction if j == i else v for j, v in enumerate(feeds.values())]
            ends.append(graph(*moved)[0])
        np.testing.assert_allclose(
            np.sum(g * direction), (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-6
        )


# ---------------------------------------------------------------- forms of graphs


def test_what_the_loss_does_not_depend_on_has_zeros_of_its_shape_and_dtype():
    x, y = mg.input("x", (2,), "float64"), mg.input("y", (3, 1), "float32")
    _, dy = mg.grad(x.sum(), [x, y])
    (result,) = values([dy], {x: np.ones(2)})
    np.testing.assert_array_equal(result, np.zeros((3, 1)))
    assert result.dtype == dy.dtype == np.float32


def test_gradients_are_a_list_for_the_loss_itself_and_for_one_that_is_named_twice():
    x = mg.input("x", ())
    grads = mg.grad(x, x)
    assert isinstance(grads, list)
    np.testing.assert_array_equal(
        values([*grads, *mg.grad(x * 2, [x, x])], {x: np.float32(5)}), [1, 2, 2]
    )


def test_gradients_of_all_uses_add_up():
    (x,) = inputs((3,))
    assert_is_gradient((x * x + ops.sin(x) * x[::-1] + x.sum()).sum(), {x: real(3)})


def test_gradient_for_an_intermediate_expression():
    (x,) = inputs((3,))
    h = ops.exp(x)
    y = (h * h * x).sum()
    dh, dx = values(mg.grad(y, [h, x]), {x: real(3)})
    e = np.exp(real(3))
    np.testing.assert_allclose(dh, 2 * e * real(3))
    np.testing.assert_allclose(dx, dh * e + e * e)


def test_gradient_of_broadcast_operands_has_their_shape():
    shapes = [(2, 3, 4), (4,), (3, 1), (), (1, 1, 1), (2, 1, 4)]
    nodes = inputs(*shapes)
    y = nodes[0]
    for x in nodes[1:]:
        y = y * x + ops.where(y > x, x, y)
    feeds = {x: real(*x.shape, seed=i) for i, x in enumerate(nodes)}
    assert [g.shape for g in mg.grad(y.sum(), nodes)] == shapes
    assert_is_gradient(y.sum(), feeds)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_gradient_has_the_dtype_of_its_expression(dtype):
    x, w = mg.input("x", (2, 3), dtype), mg.input("w", (3,), "float32")
    y = ops.relu(x * 2 + 1) ** 2 @ ops.softmax(w).astype(dtype)
    dx, dw = mg.grad(ops.mean(y * np.float32(3)), [x, w])
    assert (dx.dtype, dw.dtype) == (x.dtype, w.dtype)
    Graph((x, w), (dx, dw)).check()


def test_nothing_flows_through_integers():
    (x,) = inputs((3,))
    rounded = x.astype("int32").astype("float64") * 2
    dx, same = values(mg.grad((rounded + x).sum(), [x, rounded]), {x: real(3)})
    np.testing.assert_array_equal(dx, np.ones(3))
    np.testing.assert_array_equal(same, np.ones(3))
    maximum = ops.maximum(x.astype("int32"), 1).astype("float64")
    assert {n.dtype.kind for n in toposort(mg.grad((maximum * x).sum(), [x]))} <= set("fi")


def test_a_constant_exponent_has_a_gradient_too():
    x, c = mg.input("x", (3,), "float64"), ops.full((), 3.0, "float64")
    (dc,) = mg.grad((x**c).sum(), [c])
    value = np.array([2.0, 3.0, 0.0])
    expected = 8 * np.log(2) + 27 * np.log(3)
    np.testing.assert_allclose(Graph((x,), (dc,))(value)[0], expected)


def test_no_gradient_passes_stop_gradient():
    (x,) = inputs((3,))
    y = (ops.stop_gradient(x * x) * x).sum()
    (dx,) = values(mg.grad(y, [x]), {x: real(3)})
    np.testing.assert_allclose(dx, real(3) ** 2)


def test_only_requested_gradients_are_built():
    (x,) = inputs((4, 4))
    first, second = (mg.Parameter(real(4, 4, seed=i)) for i in (1, 2))
    loss = ops.tanh(ops.tanh(x @ first) @ second).sum()
    (dw,) = mg.grad(loss, [second])
    assert sum(node.op.name == "matmul" for node in toposort([dw])) == 3  # two and dw itself


# ---------------------------------------------------------------- gradients of gradients


def test_gradient_of_a_gradient():
    (x,) = inputs((3,))
    loss = (ops.sin(x) * x).sum()
    feeds = {x: real(3)}
    for _ in range(4):
        assert_is_gradient(loss, feeds)
        (dx,) = mg.grad(loss, [x])
        loss = dx.sum()


def test_gradient_of_a_gradient_through_layers():
    x, w, v = inputs((2, 3, 6, 6), (4, 3, 3, 3), (3, 4))
    h = ops.max_pool2d(ops.tanh(ops.conv2d(x, w, padding=1)), 2)
    h = ops.batch_norm_with_statistics(h)[0].mean((2, 3)) @ v.T
    loss = ops.cross_entropy(h, np.array([0, 2]))
    feeds = {node: real(*node.shape, seed=i) for i, node in enumerate((x, w, v))}
    assert_is_gradient(loss, feeds)
    penalty = sum((g * g).sum() for g in mg.grad(loss, [x, w, v]))
    assert_is_gradient(penalty, feeds)


# ---------------------------------------------------------------- ops with several results


def test_gradient_of_every_result_of_a_bundle():
    x, w, b = inputs((4, 3, 2), (3,), (3,))
    y, mean, var = ops.batch_norm_with_statistics(x, w, b)
    feeds = {x: real(4, 3, 2), w: real(3, seed=1), b: real(3, seed=2)}
    assert_is_gradient((y * real(4, 3, 2, seed=3)).sum(), feeds)
    assert_is_gradient((mean * [1.0, 2, 3]).sum(), feeds)
    assert_is_gradient((var * [1.0, 2, 3]).sum(), feeds)
    assert_is_gradient((y**2).sum() * (mean / var).sum() + (mean * mean).sum(), feeds)


def test_gradient_for_a_result_of_a_bundle():
    (x,) = inputs((4, 3))
    y, mean, var = ops.batch_norm_with_statistics(x)
    dmean, dvar = values(mg.grad((y * mean * mean).sum() + var.sum(), [mean, var]), {x: real(4, 3)})
    assert dmean.shape == (3,)
    np.testing.assert_array_equal(dvar, np.ones(3))


def test_second_derivative_may_read_a_result_that_the_user_reads_too():
    (x,) = inputs((4, 3))
    y, mean, var = ops.batch_norm_with_statistics(x)
    (dx,) = mg.grad((y * real(4, 3, seed=1)).sum(), [x])
    penalty = (dx * real(4, 3, seed=2)).sum() + (mean * [1.0, 2, 3]).sum() + (var * var).sum()
    assert_is_gradient(penalty, {x: real(4, 3)})


def test_an_op_without_grad_may_read_an_input_twice():
    x, v = inputs((4, 3), (3,))
    y = ops.batch_norm(x, v, v, v, v)
    assert_is_gradient((y * real(4, 3, seed=1)).sum(), {x: real(4, 3), v: real(3, low=0.5)})


def test_an_op_without_grad_may_read_inputs_that_depend_on_each_other():
    (x,) = inputs((4, 3))
    y = ops.batch_norm(x, x.mean(0), ops.var(x, 0))
    assert_is_gradient((y * real(4, 3, seed=1)).sum(), {x: real(4, 3)})
    whole = ops.batch_norm_with_statistics(x)[0]
    parts = [mg.grad((z * real(4, 3, seed=1)).sum(), [x])[0] for z in (y, whole)]
    np.testing.assert_allclose(*values(parts, {x: real(4, 3)}))


# ---------------------------------------------------------------- size


def test_depth_is_not_limited_by_the_python_stack():
    (x,) = inputs((2,))
    y = x
    for _ in range(5000):
        y = y * 0.9999 + 0.0001
    (dx,) = mg.grad(y.sum(), [x])
    Graph((x,), (dx,)).check()
    assert len(str(Graph((x,), (dx,))).splitlines()) > 5000
    np.testing.assert_allclose(values([dx], {x: np.ones(2)})[0], 0.9999**5000)


def test_deep_chains_of_ops_without_grad_are_differentiated_in_linear_size():
    sizes = []
    for depth in (10, 20, 40):
        (x,) = inputs((1, 4, 1))
        y = x
        for _ in range(depth):
            y = ops.local_response_norm(y, 3)
        sizes.append(len(toposort(mg.grad(y.sum(), [x]))))
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])


# ---------------------------------------------------------------- where gradients come from


def line():
    return inspect.currentframe().f_back.f_lineno


def test_nodes_of_a_gradient_carry_the_line_of_the_op_they_are_the_gradient_of():
    (x,) = inputs((2, 3, 4))
    h, exp_at = ops.exp(x), line()
    h, norm_at = ops.local_response_norm(h, 3), line()
    with layer("block"):
        y, sum_at = h.sum(), line()
    before = set(toposort([y]))
    (dx,) = mg.grad(y, [x])
    locations = {(n.source.line, n.source.layer) for n in toposort([dx]) if n not in before}
    assert (dx.source.file, dx.source.line) == (__file__, exp_at)
    assert {(exp_at, ""), (norm_at, ""), (sum_at, "block")} <= locations


class Opaque(Op):
    """An op without a gradient."""

    def infer(self, x):
        return x

    def forward(self, x):
        return x


def test_an_op_without_gradient_is_named_with_its_line():
    (x,) = inputs((2,))
    y, at = Opaque()(x), line()
    with pytest.raises(GraphError, match=rf"opaque: .*x0: float64\[2\].*test_autodiff.py:{at}"):
        mg.grad(y.sum(), [x])
    (dx,) = mg.grad((ops.stop_gradient(y) * x).sum(), [x])
    assert dx.shape == (2,)
