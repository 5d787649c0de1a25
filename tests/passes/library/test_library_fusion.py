"""Library fusion: biases, activations and normalisations join convolutions and products."""

import re
from collections import Counter

import numpy as np
import pytest
from heavy_nodes import CONVOLUTIONS, assert_agrees, real
from needs import needs_both

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.devices.cpu import compiler, onednn, walker
from minigraph.graph import Graph, Input
from minigraph.ops.activation import Activated
from minigraph.ops.conv import Conv2d
from minigraph.ops.matmul import Matmul
from minigraph.passes import levels
from minigraph.passes.library.convolution import fold_batch_norm, fuse_activation, fuse_bias
from minigraph.passes.notes import Notes


def function(*outputs):
    """The graph of expressions of inputs, which are in the order of their first use."""
    leaves = Graph((), outputs)
    return Graph(tuple(x for x in leaves if isinstance(x.op, Input)), outputs)


def rewritten(graph, *passes):
    """The graph after the passes, and what they did; each, run again, finds nothing to do."""
    notes = Notes()
    for rewrite in passes:
        graph, again = rewrite(graph, notes), Notes()
        graph.check()
        assert str(rewrite(graph, again)) == str(graph)
        assert not again.fired
    return graph, notes.fired


def text(node):
    """An expression as it could be written, without attributes."""
    if not node.inputs:
        return node.name
    name = re.sub(r"\[.*?\]", "", str(node.op))
    return f"{name}({', '.join(map(text, node.inputs))})"


def assert_left_alone(graph, rewrite):
    after, fired = rewritten(graph, rewrite)
    assert all(new is old for new, old in zip(after.outputs, graph.outputs, strict=True))
    assert not fired


def drawn(graph):
    return [real(*x.shape, seed=i) for i, x in enumerate(graph.inputs)]


def assert_same_values(before, after, xs=None, tolerance=1e-5):
    xs = drawn(before) if xs is None else xs
    assert_agrees(after(*xs), before(*(x.astype(np.float64) for x in xs)), tolerance)


X, W = mg.input("x", (2, 3, 6, 7)), mg.input("w", (4, 3, 3, 3))
A, B = mg.input("a", (4, 3)), mg.input("b", (3, 5))
CONV, PRODUCT = Conv2d()(X, W), A @ B


# ---------------------------------------------------------------- biases

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

V4, V5 = mg.input("v", (4,)), mg.input("v", (5,))
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

VECTORS = [mg.input(name, (4,)) for name in ("weight", "bias", "mean", "var")]


def normalised(x, eps=1e-3):
    weight, bias, mean, var = VECTORS
    return ops.batch_norm(x, mean, var, weight, bias, eps=eps)


def statistics(graph):
    """Arrays for a graph with a normalisation, whose last input is a variance."""
    *xs, var = drawn(graph)
    return [*xs, np.abs(var) + 0.1]


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


# ---------------------------------------------------------------- on the CPU


@pytest.fixture
def compiled(monkeypatch):
    """Compile a graph for the CPU: from level 2 on with library fusion, and nothing else."""
    passes = (fuse_bias, fold_batch_norm, fuse_activation)
    monkeypatch.setattr(levels, "TABLE", [levels.Row(rewrite, 2) for rewrite in passes])

    def compile_(graph, **options):
        cg = mg.comp_graph("cpu", {"graph_opt_level": 2, **options})
        return cg.compile(graph.inputs, list(graph.outputs))

    return compile_


def assert_one_step(step, name):
    report = step.report()
    assert report.ops == {name: 1}
    assert report.launches == len(report.steps) == 1
    assert report.steps[0][1].startswith("onednn")


def samples(graph):
    """Arrays for a graph; then such with a few special values in the first."""
    yield drawn(graph)
    for value in (np.nan, np.inf, -np.inf):
        xs = drawn(graph)
        xs[0].flat[:: max(xs[0].size // 5, 1)] = value
        yield xs


@needs_both
@pytest.mark.parametrize("activation", [ops.relu, ops.tanh], ids=["relu", "tanh"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_with_bias_and_activation_is_one_step(case, activation, compiled):
    n, c, k, image, window, fields = CONVOLUTIONS[case]
    op = Conv2d(**fields)
    x, w = mg.input("x", (n, c, *image)), mg.input("w", (k, c // op.groups, *window))
    graph = function(activation(op(x, w) + mg.input("v", (k,)).reshape(k, 1, 1)))
    step = compiled(graph)
    assert_one_step(step, "conv2d")
    for xs in samples(graph):
        assert_same_values(graph, step, xs, 1e-4)  # tanh is steep where the sum's error is absolute


PRODUCTS = {
    "matrices": lambda x, w: (x((7, 5)), w((5, 9))),
    "transposed": lambda x, w: (x((5, 7)).T, w((9, 5)).T),
    "columns": lambda x, w: (x((7, 12))[:, 4:9], w((5, 20))[:, 3:12]),
    "steps": lambda x, w: (x((7, 10))[:, ::2], w((5, 9))),
    "one row": lambda x, w: (x((1, 5)), w((5, 9))),
    "one column": lambda x, w: (x((7, 5)), w((5, 1))),
    "batches": lambda x, w: (x((4, 1, 7, 5)), w((3, 5, 9))),
    "on two threads": lambda x, w: (x((200, 300)), w((300, 100))),
}


@needs_both
@pytest.mark.parametrize("case", PRODUCTS)
def test_a_product_with_bias_and_activation_is_one_kernel(case, compiled):
    x, w = PRODUCTS[case](lambda size: mg.input("x", size), lambda size: mg.input("w", size))
    graph = function(ops.relu(x @ w + mg.input("v", w.shape[-1:])))
    step = compiled(graph)
    steps = [kernel for name, kernel, _ in step.report().steps if name == "matmul"]
    assert len(steps) == 1
    assert steps[0].startswith("onednn")
    assert not step.report().ops["relu"] + step.report().ops["add"]
    for xs in samples(graph):
        assert_same_values(graph, step, xs)


@needs_both
def test_the_bias_itself_passes_special_values(compiled):
    for product, bias in ((CONV, V4.reshape(4, 1, 1)), (PRODUCT, V5)):
        graph = function(ops.relu(product + bias))
        step, xs = compiled(graph), drawn(graph)
        xs[2][:3] = np.nan, np.inf, -np.inf
        assert_same_values(graph, step, xs)


LONG = function(ops.relu(Conv2d()(X, W) + V4.reshape(4, 1, 1))), function(ops.tanh(PRODUCT + V5))


@pytest.mark.parametrize("graph", LONG, ids=["conv2d", "matmul"])
@pytest.mark.parametrize("missing", ["runtime", "kernels", "oneDNN"])
def test_where_something_is_missing_the_result_is_the_same(graph, missing, compiled, monkeypatch):
    if missing == "runtime":
        monkeypatch.setattr(walker, "load", lambda linker: None)
    elif missing == "kernels":
        functions = compiler.KERNELS.functions

        def the_walker_alone(sources, on_disk):
            found = functions(sources, on_disk)
            return {name: at if name == walker.WALKER.name else 0 for name, at in found.items()}

        monkeypatch.setattr(compiler.KERNELS, "functions", the_walker_alone)
    else:
        monkeypatch.setattr(onednn, "library", lambda: None)
    step = compiled(graph)
    assert_same_values(graph, step)
    assert len(step.report().steps) == 1


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_other_dtypes_run_in_numpy(dtype, compiled):
    x, w, v = mg.input("x", (4, 3), dtype), mg.input("w", (3, 5), dtype), mg.input("v", (5,), dtype)
    graph = function(ops.relu(x @ w + v))
    step = compiled(graph)
    assert [kernel for _, kernel, _ in step.report().steps] == ["numpy"]
    xs = [(real(*a.shape, seed=i) * 4).astype(dtype) for i, a in enumerate((x, w, v))]
    np.testing.assert_array_equal(step(*xs)[0], graph(*xs)[0])


def test_empty_arrays_stay_empty_and_sums_of_nothing_are_the_bias(compiled):
    for size, inner in ((0, 3), (4, 0)):
        x, w, v = mg.input("x", (size, inner)), mg.input("w", (inner, 5)), mg.input("v", (5,))
        graph = function(ops.relu(x @ w + v))
        assert_same_values(graph, compiled(graph))


@needs_both
def test_without_bulk_a_step_of_two_kernels_is_one_call(compiled):
    graph = function(ops.relu(ops.relu(PRODUCT) @ mg.input("c", (5, 2))))
    step = compiled(graph, bulk=False)
    assert step.report().launches == len(step.report().steps) == 2
    assert_same_values(graph, step)
    assert len(step.profile(*drawn(graph)).kernels) == 2


@needs_both
@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("biased", [False, True])
def test_a_convolution_with_a_folded_normalisation_is_one_heavy_step(case, biased, compiled):
    n, c, k, image, window, fields = CONVOLUTIONS[case]
    op = Conv2d(**fields)
    x, w = mg.input("x", (8 * n, c, *image)), mg.input("w", (k, c // op.groups, *window))
    vectors = [mg.input(name, (k,)) for name in ("weight", "bias", "mean", "var")]
    y = op(x, w, mg.input("v", (k,))) if biased else op(x, w)
    graph = function(ops.relu(ops.batch_norm(y, *vectors[2:], *vectors[:2])))
    step = compiled(graph)
    folded = w.size < y.size
    assert step.report().ops["batch_norm_inference"] == (not folded)
    assert step.report().ops["relu"] == (not folded)
    assert_same_values(graph, step, statistics(graph), 3e-5)


# ---------------------------------------------------------------- whole networks


def network():
    nn.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )


def test_a_network_infers_the_same_with_fewer_steps(compiled):
    net = network()
    net.eval()
    x = mg.input("x", (4, 3, 8, 8))
    graph = function(net(x))
    step, plain = compiled(graph), compiled(graph, graph_opt_level=0)
    ops_ = step.report().ops
    assert ops_["conv2d"] == ops_["matmul"] == 2
    assert not ops_["relu"] + ops_["batch_norm_inference"]
    for xs in samples(graph):
        assert_agrees(step(*xs), plain(*xs))


def test_a_network_trains_to_the_same_numbers(compiled):
    losses = []
    for level in (0, 2):
        net = network()
        x, labels = mg.input("x", (8, 3, 8, 8)), mg.input("labels", (8,), "int64")
        loss = ops.cross_entropy(net(x), labels)
        updates = {**optim.SGD(net.parameters(), lr=0.05).minimize(loss), **net.updates()}
        cg = mg.comp_graph("cpu", {"graph_opt_level": level})
        step = cg.compile([x, labels], loss, updates)
        losses.append([step(real(8, 3, 8, 8, seed=i), np.arange(8) % 5) for i in range(5)])
        fired = sum((Counter(record.fired) for record in step.report().passes), Counter())
    np.testing.assert_allclose(*losses, rtol=1e-5)
    expected = {"matmul with bias": 2, "matmul with relu": 1, "conv2d with relu": 1}
    assert {name: fired[name] for name in expected} == expected


def test_thousands_of_layers_are_fused():
    x, w, v = mg.input("x", (1, 1)), mg.input("w", (1, 1)), mg.input("v", (1,))
    y = x
    for _ in range(5000):
        y = ops.relu(y @ w + v)
    _, fired = rewritten(function(y), fuse_bias, fuse_activation)
    assert fired == {"matmul with bias": 5000, "matmul with relu": 5000}
