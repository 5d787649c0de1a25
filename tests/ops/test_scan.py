"""Loops: `minigraph.ops.scan`, and `minigraph.devices.cpu.loop`, which runs them."""

import functools
import signal
from collections import namedtuple
from itertools import chain

import numpy as np
import pytest
from needs import needs_compiler
from scanned import trained
from toy_device import ToyBackend

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import loop, straight_line
from minigraph.errors import DeviceError, GraphError
from minigraph.graph import Graph, Op
from minigraph.inspect.page import from_file
from minigraph.jit.source import KernelSource
from minigraph.ops.scan import Scan
from minigraph.passes.rewrite.loops import unroll_loops


@pytest.fixture
def of_kernels(monkeypatch):
    """Loops call the kernels of their bodies, whose values do not fit one function."""
    monkeypatch.setattr(straight_line, "MAX_ELEMENTS", 0)


@pytest.fixture(params=["one function", "kernels"])
def form(request):
    """The two forms of a loop on the CPU."""
    if request.param == "kernels":
        request.getfixturevalue("of_kernels")
    return request.param


def real(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32")


def tanh(h, x, w, b):
    h = ops.tanh(h @ w + x + b)
    return h, h


def weights_on_the_left(h, x, w, b):
    h = ops.tanh(w @ h.T).T + x
    return h, ops.sum(h * b, 1)


def both_sides(h, x, w, b):
    return ops.sin(w * h) @ w.T - x * b, None


def elementwise(h, x, w, b):
    return h * b + ops.sin(x), h * x


def reductions(h, x, w, b):
    h = h / (1 + ops.sum(h * h, -1, keepdims=True)) + ops.mean(x, 0)
    return h, ops.max(h, -1)


def swapped(h, x, w, b):
    first, second = h
    return (second, ops.tanh(first) * x), (first, b)


def shared(h, x, w, b):
    """Two carries and two results that are one value, and a slice that is handed on."""
    first, second = h
    new = ops.tanh(first * second + x)
    return (new, new), (new, new, x)


def normalized(h, x, w, b):
    h, mean, _ = ops.batch_norm_with_statistics(h * x + x, b * b + 1, b, 0.1)
    return h * 0.1, mean


def nested(h, x, w, b):
    def inner(k, row):
        return ops.tanh(k * row + b), k

    k, rows = ops.scan(inner, ops.mean(h, 0), x)
    return h * 0.5 + rows * 0.1 + k, rows


BODIES = (
    *(tanh, weights_on_the_left, both_sides, elementwise, reductions, swapped, shared),
    *(normalized, nested),
)
SHAPES = {"x": (5, 4, 4), "h": (4, 4), "k": (4, 4), "w": (4, 4), "b": (4,)}
VALUES = [real(*shape, seed=i) for i, shape in enumerate(SHAPES.values())]


def unrolled(body, carry, x, reverse):
    results = [None] * len(x)
    for i in sorted(range(len(x)), reverse=reverse):
        carry, results[i] = body(carry, x[i])
    if results[0] is None:
        return carry, None
    if isinstance(results[0], tuple):
        return carry, tuple(map(ops.stack, zip(*results, strict=True)))
    return carry, ops.stack(results)


def leaves(tree):
    return [*tree] if isinstance(tree, tuple) else [] if tree is None else [tree]


@functools.cache
def outputs(body, reverse, loop, order=2):
    """The inputs, and the results of a loop, their gradients, and the gradients of those."""
    inputs = [mg.input(f"{body.__name__}_{each}", shape) for each, shape in SHAPES.items()]
    x, h, k, w, b = inputs
    step = lambda carry, part: body(carry, part, w, b)  # noqa: E731
    results = loop(step, (h, k) if body in (swapped, shared) else h, x, reverse=reverse)
    ys = [y for tree in results for y in leaves(tree)]
    values = list(ys)
    for _ in range(order):
        ys = mg.grad(sum(ops.sum(ops.sin(y + i)) for i, y in enumerate(ys)), inputs)
        values += ys
    return inputs, values


@functools.cache
def meaning(body, reverse):
    """Return the results of the unrolled graph of a body, with gradients."""
    inputs, results = outputs(body, reverse, unrolled)
    return Graph(tuple(inputs), tuple(results))(*VALUES)


@needs_compiler
@pytest.mark.parametrize(("reverse", "level"), [(False, 0), (True, 3)])
def test_loops_and_their_gradients_are_those_of_the_unrolled_graphs(reverse, level, form):
    """All are one function.  The gradient of a loop is a loop in the other direction."""
    inputs, values = zip(*(outputs(body, reverse, ops.scan) for body in BODIES), strict=True)
    cg = mg.comp_graph("cpu", {"graph_opt_level": level, "autotune": "off"})
    function = cg.compile(list(chain(*inputs)), list(chain(*values)))
    assert function.report().ops["scan"] >= 3 * len(BODIES)
    assert not function.report().numpy
    results = iter(function(*VALUES * len(BODIES)))
    for body in BODIES:
        for expected in meaning(body, reverse):
            scale = np.abs(expected).max()
            atol = 2e-5 * max(scale, 1)
            np.testing.assert_allclose(next(results), expected, 2e-4, atol, err_msg=body.__name__)


@pytest.mark.parametrize("level", [-1, -2, -3])
@pytest.mark.parametrize("body", [tanh, swapped, nested])
def test_verification_accepts_loops(body, level):
    inputs, results = outputs(body, False, ops.scan, order=1)
    function = mg.comp_graph("cpu", {"graph_opt_level": level}).compile(inputs, results)
    want = Graph(tuple(inputs), tuple(results))(*VALUES)
    for result, expected in zip(function(*VALUES), want, strict=True):
        np.testing.assert_allclose(result, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("level", [0, 3])
def test_a_loop_of_no_steps_returns_the_first_carry(level):
    x, h = mg.input("x", (0, 3)), mg.input("h", (3,))
    last, ys = ops.scan(lambda c, v: (c * v, c + v), h, x)
    (dh,) = mg.grad(ops.sum(last) + ops.sum(ys), [h])
    function = mg.comp_graph("cpu", {"graph_opt_level": level}).compile([x, h], [last, ys, dh])
    results = function(real(0, 3), [1, 2, 3])
    np.testing.assert_array_equal(results[0], [1, 2, 3])
    assert results[1].shape == (0, 3)
    np.testing.assert_array_equal(results[2], np.ones(3))


Pair = namedtuple("Pair", ["value", "count"])


def test_trees_keep_their_form_and_integers_are_carried():
    x = mg.input("x", (3, 2))

    def body(carry, part):
        assert isinstance(part, list)
        weight = carry.count.astype("float32")
        carry = Pair(carry.value + part[0] * weight, carry.count + 1)
        return carry, [carry.count]

    last, ys = ops.scan(body, Pair(ops.zeros(2), np.int32(1)), [x])
    assert isinstance(last, Pair)
    assert isinstance(ys, list)
    (dx,) = mg.grad(ops.sum(last.value), [x])
    results = mg.comp_graph("cpu").compile([x], [*last, *ys, dx])(np.ones((3, 2)))
    for result, want in zip(results, ([6, 6], 4, [2, 3, 4], [[1, 1], [2, 2], [3, 3]]), strict=True):
        np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("change", [lambda x: x[::-2], lambda x: x.transpose(1, 0, 2)])
def test_slices_of_views_are_read_where_they_are(change):
    x = mg.input("x", (6, 6, 2))
    _, ys = ops.scan(lambda c, v: (c + v, c * v), ops.zeros((6, 2)), change(x))
    function = mg.comp_graph("cpu", {"graph_opt_level": 3}).compile([x], ys)
    (want,) = Graph((x,), (ys,))(real(6, 6, 2))
    np.testing.assert_allclose(function(real(6, 6, 2)), want, rtol=1e-5)
    assert function.report().ops["copy"] == 0


def test_a_body_may_use_what_comes_from_outside_very_often():
    w, x = mg.input("w", (2, 2)), mg.input("x", (3, 2, 2))

    def body(c, v):
        for _ in range(1500):
            c = c @ w
        return c + v, None

    last, _ = ops.scan(body, ops.zeros((2, 2)), x)
    (dw,) = mg.grad(last.sum(), [w])
    gradient = Graph((w, x), (dw,))(np.eye(2, dtype=np.float32), np.ones((3, 2, 2), np.float32))[0]
    np.testing.assert_array_equal(gradient, np.full((2, 2), 1500 * (1 + 2) * 2))


def test_an_unrolled_graph_has_no_loops():
    inputs, results = outputs(nested, True, ops.scan, order=1)
    graph = unroll_loops(Graph(tuple(inputs), tuple(results)))
    graph.check()
    assert not any(isinstance(node.op, Scan) for node in graph)
    want = Graph(tuple(inputs), tuple(results))(*VALUES)
    for result, expected in zip(graph(*VALUES), want, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- functions that have loops


@needs_compiler
def test_the_report_names_the_loop_and_its_kernels(of_kernels):
    loss, _, wrt = trained()
    cg = mg.comp_graph("cpu", {"graph_opt_level": 3, "autotune": "off"})
    report = cg.compile(wrt, [loss, *mg.grad(loss, wrt)]).report()
    assert [kernel for op, kernel, _ in report.steps if op == "scan"] == ["c loop"] * 2
    assert report.launches == 1
    assert any("tanh" in kernel.ops for kernel in report.kernels)
    assert report.ops["fused"] == len(report.kernels)
    assert report.ops["matmul"] == len(report.algorithms) == 3
    values = [np.zeros(x.shape, x.dtype) for x in wrt]
    assert "c loop" in str(mg.comp_graph("cpu").compile(wrt, loss).profile(*values))


@needs_compiler
def test_pictures_show_the_loop(tmp_path, of_kernels):
    loss, _, wrt = trained()
    function = mg.comp_graph("cpu").compile(wrt, loss)
    function.to_dot(tmp_path / "loop.dot")
    function.to_html(tmp_path / "loop.html")
    assert "scan" in (tmp_path / "loop.dot").read_text()
    (described,) = from_file(tmp_path / "loop.html")
    (loop,) = {step.loop for step in described.steps if step.loop is not None}
    assert described.steps[loop].name == "scan"


@needs_compiler
def test_a_body_that_numpy_computes_is_named(monkeypatch):
    monkeypatch.setattr(Op, "registry", {})

    class Rotated(Op):
        def infer(self, x):
            return x

        def forward(self, x):
            return np.roll(x, 1)

    x, h = mg.input("x", (3, 4)), mg.input("h", (4,))
    _, ys = ops.scan(lambda c, v: (Rotated()(c) + v, c), h, x)
    function = mg.comp_graph("cpu").compile([x, h], ys)
    (why,) = [text for text in function.report().numpy if text.startswith("scan")]
    assert "NumPy computes rotated in its body: rotated has no kernel" in why
    (want,) = Graph((x, h), (ys,))(real(3, 4), real(4))
    np.testing.assert_allclose(function(real(3, 4), real(4)), want)


@needs_compiler
@pytest.mark.parametrize("sides", [(3, 3), (1, 7), (16, 16)])
def test_small_products_of_every_type_are_one_function(sides):
    """The slices are transposed, so that they are read across."""
    rows, n = sides
    rng = np.random.default_rng(0)
    inputs, arrays, outputs, expected = [], [], [], []
    dtypes = ("float32", "float64", "int8", "uint16", "int64", "bool")
    for dtype in dtypes:
        xs = rng.integers(-1, 2, (6, n, n)).astype(dtype)
        carries = [rng.integers(0, 2, (rows, n)).astype(dtype)]
        arrays += [carries[0], xs]
        h, x = (mg.input(f"{dtype} {y.ndim}", y.shape, dtype) for y in arrays[-2:])
        last, ys = ops.scan(lambda c, v: (c @ v.T, c), h, x)
        inputs += [h, x]
        outputs += [last, ys, ops.sum(ys)]
        for y in xs:
            carries.append(carries[-1] @ y.T)
        expected += [carries[-1], carries[:-1], np.sum(carries[:-1], dtype=outputs[-1].dtype)]
    function = mg.comp_graph("cpu").compile(inputs, outputs)
    kernels = [kernel for op, kernel, _ in function.report().steps if op == "scan"]
    assert kernels == ["c one function"] * len(dtypes)
    for y, of_numpy in zip(function(*arrays), expected, strict=True):
        np.testing.assert_array_equal(y, of_numpy)


def test_a_refused_token_in_the_loop_leaves_the_parameters_as_they_were():
    table, tokens = mg.Parameter(real(4, 3)), mg.input("tokens", (5,), "int64")
    last, _ = ops.scan(lambda c, i: (c + ops.take(table, i, 0), None), ops.zeros(3), tokens)
    updates = {table: table * 2.0}
    function = mg.comp_graph("cpu").compile([tokens], last, updates=updates)
    with pytest.raises(GraphError, match="9"):
        function([0, 1, 9, 2, 3])
    np.testing.assert_array_equal(table.numpy(), real(4, 3))
    np.testing.assert_allclose(function([0, 1, 3, 2, 3]), real(4, 3)[[0, 1, 3, 2, 3]].sum(0), 1e-5)


def test_calls_do_not_see_what_earlier_ones_left():
    inputs, results = outputs(shared, False, ops.scan, order=1)
    function = mg.comp_graph("cpu", {"graph_opt_level": 3}).compile(inputs, results)
    first = function(*VALUES)
    function(*(v * 3 for v in VALUES))
    for a, b in zip(first, function(*VALUES), strict=True):
        np.testing.assert_array_equal(a, b)


@needs_compiler
@pytest.mark.parametrize("level", [0, 3])
def test_a_loop_that_pauses_goes_on_where_it_was(level, form, monkeypatch):
    assert "100000000" in loop.CLOCK_TEXT
    hasty = loop.CLOCK_TEXT.replace("100000000", "-1")
    monkeypatch.setattr(loop, "CLOCK_TEXT", hasty)
    monkeypatch.setattr(loop, "LOOP", KernelSource(hasty + loop.LOOP_TEXT))
    x, p = mg.input("x", (5, 3, 4)), mg.Parameter(np.full(4, 0.5, np.float32))

    def row(c, v):
        return ops.scan(lambda d, u: (ops.tanh(d * p + u), d + u), c, v)

    last, ys = ops.scan(row, ops.ones((4,)), x)
    loss = last.sum() + ops.square(ys).sum()
    updates = {p: p - 0.1 * mg.grad(loss, [p])[0]}
    value = np.random.default_rng(0).normal(size=x.shape)
    computed = []
    for device in ("reference", "cpu"):
        p.assign(np.full(4, 0.5))
        cg = mg.comp_graph(device, {"graph_opt_level": level})
        functions = [cg.compile([x], [loss, ys], u) for u in ({}, updates, updates)]
        results = [y for f in functions for y in f(value)]
        functions[1].profile(value, calls=1)
        computed.append([*results, p.numpy()])
    for a, b in zip(*computed, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@needs_compiler
@pytest.mark.parametrize("level", [0, 3])
def test_an_interrupt_ends_a_long_loop_and_changes_nothing(level, form):
    p, x = mg.Parameter(np.ones(4)), mg.input("x", (4,), "float64")
    cg = mg.comp_graph("cpu", {"graph_opt_level": level})

    def loops(length):
        last, _ = ops.scan(lambda c, v: (c * 0.5 + p, None), x, None, length=length)
        outer, _ = ops.scan(lambda c, v: (last + c, None), x, None, length=length)
        return [cg.compile([x], y, u) for y in (last, outer) for u in ({}, {p: p + y})]

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for function in loops(10**11):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                function(np.ones(4))
            np.testing.assert_array_equal(p.numpy(), np.ones(4))
    finally:
        signal.signal(signal.SIGALRM, before)
    for function in loops(3)[:2]:
        np.testing.assert_array_equal(function(np.ones(4)), np.full(4, 1.875))
    np.testing.assert_array_equal(p.numpy(), np.full(4, 2.875))


X = mg.input("x", (3, 4))


def test_a_device_refuses_by_default_what_is_not_unrolled():
    assert ToyBackend.unrolls
    with pytest.raises(DeviceError, match="cannot run loops"):
        ToyBackend().loop(X, [], None)


@pytest.mark.parametrize("level", [0, 3])
def test_any_length_and_any_batch(level):
    x, w = mg.input("x", ("length", None, 3)), mg.Parameter(real(3, 3))
    last, ys = ops.scan(lambda c, v: (ops.tanh(c @ w + v),) * 2, ops.zeros_like(x[0]), x)
    (dw,) = mg.grad(ops.sum(last) + ops.sum(ys * ys), [w])
    function = mg.comp_graph("cpu", {"graph_opt_level": level}).compile([x], [ys, dw])
    for shape in ((1, 2, 3), (4, 1, 3)):
        y = mg.input("y", shape)
        last, ys = ops.scan(lambda c, v: (ops.tanh(c @ w + v),) * 2, ops.zeros_like(y[0]), y)
        want = Graph((y,), (ys, *mg.grad(ops.sum(last) + ops.sum(ys * ys), [w])))(real(*shape))
        for a, b in zip(function(real(*shape)), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
