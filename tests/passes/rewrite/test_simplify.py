"""Level 1: each rewrite fires where it may, leaves alone what it must, and changes no bit."""

import itertools

import numpy as np
import pytest
from rewriting import (
    F32,
    F64,
    I32,
    INT,
    ONES,
    ROW,
    B,
    D,
    K,
    U,
    X,
    Y,
    assert_becomes,
    assert_bits,
    assert_close,
    graph_of,
    optimized,
    run,
    values,
)
from samples import specials

import minigraph as mg
from minigraph import DTypeError, ops
from minigraph.graph import BOOL, DTYPES, FLOATS, Constant, Graph, constant
from minigraph.ops.batch_norm import BatchNorm
from minigraph.ops.comparison import Comparison
from minigraph.ops.elementwise import Astype, kind
from minigraph.ops.random import SEED, STEP, number_streams
from minigraph.ops.reduction import Max, Min, Prod, Sum
from minigraph.ops.slicing import Pad, Slice
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite import facts
from minigraph.passes.rewrite.common_subexpressions import share_common
from minigraph.passes.rewrite.rule import rewrite
from minigraph.passes.rewrite.simplification import EXACT, FOLDED, simplify

# ---------------------------------------------------------------- every rule, on special values


PATTERNS = [rule for rule in EXACT if rule.sides]


def candidates(x):
    """What a variable may have to stand for until a rule fits."""
    yield lambda: x
    yield lambda: abs(x)
    yield lambda: x > 0
    yield lambda: constant(4, x.dtype)


def instance(rule, dtype):
    """Return a graph that the rule applies to, with operands of that dtype; None if there is none.

    The shapes of the variables are such that every combination of values occurs.
    """
    count = rule.sides.__code__.co_argcount
    size = specials(F32).size
    shapes = [(size,) + (1,) * i for i in range(count)]
    inputs = tuple(mg.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes))
    for choice in itertools.product(*map(candidates, inputs)):
        try:
            before = rule.sides(*(make() for make in choice))[0]
        except (DTypeError, TypeError):
            continue
        if kind(before.dtype) == kind(dtype) or isinstance(before.op, Comparison):
            graph = Graph(inputs, (before,))
            if run(lambda g, notes: rewrite(g, [rule], notes), graph)[1]:
                return graph
    return None


@pytest.mark.parametrize("rule", PATTERNS, ids=lambda rule: rule.name)
def test_a_rule_changes_no_bit(rule):
    fired = 0
    for dtype in (*FLOATS, I32, *map(np.dtype, ("int64", "uint8")), BOOL):
        graph = instance(rule, dtype)
        if graph is None:
            continue
        fired += 1
        new, _ = run(lambda g, notes: rewrite(g, [rule], notes), graph)
        xs = [values(x.dtype, x.shape) for x in graph.inputs]
        got, want = new(*xs)[0], graph(*xs)[0]
        assert_bits(got, want)
    assert fired


# ---------------------------------------------------------------- what becomes what


FIRES = {
    "1 * x": (lambda x: 1 * x, lambda x: x, X),
    "-1 * x": (lambda x: -1 * x, lambda x: -x, X),
    "-0.0 + x": (lambda x: -0.0 + x, lambda x: x, X),
    "0 + integers": (lambda i: 0 + i, lambda i: i, INT),
    "0 - integers": (lambda i: 0 - i, lambda i: -i, INT),
    "0 * integers": (lambda i: 0 * i, lambda i: ops.broadcast_to(np.int32(0), i.shape), INT),
    "i - i": (lambda i: i - i, lambda i: ops.broadcast_to(np.int32(0), i.shape), INT),
    "x + -y": (lambda x, y: x + -y, lambda x, y: x - y, X, Y),
    "-y + x": (lambda x, r: -r + x, lambda x, r: x - r, X, ROW),
    "x / 8": (lambda x: x / 8, lambda x: x * 0.125, X),
    "x / -0.5": (lambda x: x / -0.5, lambda x: x * -2.0, X),
    "1 / x": (lambda x: 1 / x, ops.reciprocal, X),
    "i ** 2": (lambda i: i**2, ops.square, INT),
    "i ** 3": (lambda i: i**3, lambda i: ops.square(i) * i, INT),
    "x ** 1": (lambda x: x**1, lambda x: x, X),
    "x ** -1": (lambda x: x**-1, ops.reciprocal, X),
    "a power with an array of exponents": (
        lambda r: r ** np.full((5, 30), 2, "float32"),
        lambda r: ops.broadcast_to(ops.square(r), (5, 30)),
        ROW,
    ),
    "a chain that cancels": (lambda x: ops.negative(-(x * 1 - 0.0)) / 1, lambda x: x, X),
    "times ones": (lambda x: x * ONES, lambda x: x, X),
    "times ones behind a view": (
        lambda x: x * ops.broadcast_to(np.ones((1, 1, 1), "float32"), (1, 5, 30)).reshape(5, 30),
        lambda x: x,
        X,
    ),
    "times ones of a larger shape": (
        lambda r: r * ONES,
        lambda r: ops.broadcast_to(r, (5, 30)),
        ROW,
    ),
    "a power of 0": (lambda x: x**0, lambda x: ops.broadcast_to(np.float32(1), x.shape), X),
    "abs of abs of integers": (lambda i: abs(abs(i)), abs, INT),
    "abs of unsigned integers": (lambda u: abs(-u), lambda u: -u, U),
    "sign of sign": (lambda x: ops.sign(ops.sign(x)), ops.sign, X),
    "relu of relu": (lambda x: ops.relu(ops.relu(x)), ops.relu, X),
    "relu of sigmoid": (lambda x: ops.relu(ops.sigmoid(x)), ops.sigmoid, X),
    "rounding twice": (lambda x: ops.floor(ops.ceil(x)), ops.ceil, X),
    "rounding integers": (ops.round, lambda i: i, INT),
    "rounding what was an integer": (
        lambda i: ops.floor(i.astype("float32")),
        lambda i: i.astype("float32"),
        INT,
    ),
    "not not of numbers": (
        lambda x: ops.logical_not(ops.logical_not(x)),
        lambda x: ops.not_equal(x, 0),
        X,
    ),
    "not equal": (
        lambda x, r: ops.logical_not(ops.equal(r, x)),
        lambda x, r: ops.not_equal(r, x),
        X,
        ROW,
    ),
    "where true broadcasts": (
        lambda r, x: ops.where(np.ones((5, 1), bool), r, x),
        lambda r, x: ops.broadcast_to(r, (5, 30)),
        ROW,
        X,
    ),
    "equal choices": (
        lambda b, r: ops.where(b, r, r),
        lambda b, r: ops.broadcast_to(r, (5, 30)),
        B,
        ROW,
    ),
    "stop_gradient": (ops.stop_gradient, lambda x: x, X),
    "reshape": (lambda x: x.reshape(10, 15).reshape(150), lambda x: x.reshape(150), X),
    "reshape there and back": (lambda x: x.reshape(150).reshape(5, 30), lambda x: x, X),
    "transpose": (lambda x: x.T.T, lambda x: x, X),
    "transpose a row": (lambda r: r.reshape(1, 30).T, lambda r: r.reshape(30, 1), ROW),
    "permute": (
        lambda x: x.reshape(5, 6, 5).transpose(1, 2, 0).transpose(0, 2, 1),
        lambda x: x.reshape(5, 6, 5).transpose(1, 0, 2),
        X,
    ),
    "broadcast": (
        lambda r: ops.broadcast_to(ops.broadcast_to(r, (5, 30)), (2, 5, 30)),
        lambda r: ops.broadcast_to(r, (2, 5, 30)),
        ROW,
    ),
    "flip": (lambda x: ops.flip(ops.flip(x, (0, 1)), 1), lambda x: ops.flip(x, 0), X),
    "flip there and back": (lambda x: ops.flip(ops.flip(x)), lambda x: x, X),
    "flip of one row": (lambda x: ops.flip(x[:1]), lambda x: ops.flip(x[:1], 1), X),
    "slice": (lambda x: x[1:, 2::3][1:4:2, 1:], lambda x: x[2:5:2, 5::3], X),
    "slice to nothing": (
        lambda x: x[1:][:, 4:4],
        Slice((1, 0), (5, 0), (1, 1)),
        X,
    ),
    "slice of everything": (Slice((0, 0), (5, 30), (1, 1)), lambda x: x, X),
    "no padding": (Pad((0, 0), (0, 0), (0, 0)), lambda x: x, X),
    "concat of one": (lambda x: ops.concat([x]), lambda x: x, X),
    "max over one element": (lambda x: x.reshape(5, 1, 30).max(1), lambda x: x, X),
    "rows of one number": (
        lambda x: ops.broadcast_to(x.sum(), (2, 6)).reshape(3, 4).T[1:],
        lambda x: ops.broadcast_to(x.sum(), (3, 3)),
        X,
    ),
    "x / 2**126, whose inverse is the smallest that is normal": (
        lambda x: x / 2.0**126,
        lambda x: x * 2.0**-126,
        X,
    ),
    "cast there and back": (lambda x: x.astype("float64").astype("float32"), lambda x: x, X),
    "a cast of each kind": (
        lambda i: i.astype("float64").astype("int64"),
        lambda i: i.astype("int64"),
        INT,
    ),
    "cast of bool": (lambda b: b.astype("int8").astype("bool"), lambda b: b, B),
    "fold": (lambda x: x * (constant(np.float32(2)) * 3 - 5), lambda x: x, X),
    "before broadcasting": (
        lambda r, x: ops.exp(ops.broadcast_to(r, (5, 30))) * 2 + x,
        lambda r, x: ops.exp(r) * 2 + x,
        ROW,
        X,
    ),
    "broadcast after": (
        lambda r: -ops.broadcast_to(r, (5, 30)) * ONES + ops.broadcast_to(r, (5, 30)),
        lambda r: ops.broadcast_to(r - r, (5, 30)),
        ROW,
    ),
    "a column and a row": (
        lambda x, r: ops.broadcast_to(x[:, :1], (5, 30)) * ops.broadcast_to(r, (5, 30)),
        lambda x, r: x[:, :1] * r,
        X,
        ROW,
    ),
    "a cast of what is repeated": (
        lambda r: ops.broadcast_to(r, (5, 30)).astype("float64"),
        lambda r: ops.broadcast_to(r.astype("float64"), (5, 30)),
        ROW,
    ),
    "gradients of sums": (
        lambda x: mg.grad((x * 2).sum() + x.mean(), [x])[0],
        lambda x: ops.broadcast_to(np.float32(np.float32(1 / 150) + 2), x.shape),
        X,
    ),
}


@pytest.mark.parametrize("case", FIRES.values(), ids=FIRES)
def test_an_expression_becomes_a_simpler_one(case):
    before, after, *inputs = case
    assert_becomes(optimized, graph_of(before, *inputs), graph_of(after, *inputs))


def test_the_square_root_of_what_is_not_negative_needs_no_power():
    before = graph_of(lambda x, r: (ops.exp(x) + r * r) ** 0.5, X, ROW)
    after = graph_of(lambda x, r: ops.sqrt(ops.exp(x) + r * r), X, ROW)
    assert_becomes(optimized, before, after, assert_close)


STAYS = {
    "x + 0 for -0.0": (lambda x: x + 0, X),
    "x - -0.0 for -0.0": (lambda x: x - -0.0, X),
    "0 - x for 0.0": (lambda x: 0 - x, X),
    "x * 0 for infinities": (lambda x: x * 0, X),
    "x - x for infinities": (lambda x: x - x, X),
    "x / x": (lambda x: x / x, X),
    "x ** 5": (lambda x: x**5, X),
    "i ** -1": (lambda i: i**-1, INT),
    "u times 255, which is not -1": (lambda u: u * 255, U),
    "relu of integer squares, which wrap around": (lambda i: ops.relu(i * i), INT),
    "floor_divide by 1 of floats": (lambda x: x // 1, X),
    "x / 3": (lambda x: x / 3, X),
    "x / 0": (lambda x: x / 0, X),
    "x / 2**127, whose inverse is too small": (lambda x: x / 2.0**127, X),
    "i & 1": (lambda i: i & 1, INT),
    "logical_and of numbers": (lambda x: ops.logical_and(x, x), X),
    "a choice by what is 0": (lambda x, r: ops.where(ops.logical_not(x), x, r), X, ROW),
    "not less": (lambda x: ops.logical_not(x < 1), X),
    "floor of a fraction": (lambda x: ops.floor(x / 3), X),
    "relu of maximum(x, 0), which may be NaN or -0.0": (lambda x: ops.relu(ops.maximum(x, 0)), X),
    "a half of ones": (lambda x: x * np.array([[1], [1], [2], [1], [1]], "float32"), X),
    "zeros of either sign": (lambda x: x + np.float32([[-0.0], [0], [0], [0], [-0.0]]), X),
    "a narrowing cast": (lambda d: d.astype("float32").astype("float64"), D),
    "a cast of large integers": (lambda k: k.astype("float64").astype("int64"), K),
    "floats to integers": (lambda x: x.astype("float64").astype("int16"), X),
    "flip of a reshape": (lambda x: ops.flip(x.reshape(150)), X),
    "concat of two": (lambda x, r: ops.concat([x, r.reshape(1, 30)]), X, ROW),
    "a view of rows": (lambda r: ops.broadcast_to(r, (5, 30)).T, ROW),
    "no rows, which are less than one": (lambda r: ops.exp(ops.broadcast_to(r, (0, 30))), ROW),
    "padding": (lambda x: ops.pad(x, 1), X),
    "a sum of what is repeated": (lambda r: ops.broadcast_to(r, (5, 30)).sum(), ROW),
    "broadcast operands of other ops": (lambda r: ops.broadcast_to(r, (30, 30)) @ r, ROW),
}


@pytest.mark.parametrize("case", STAYS.values(), ids=STAYS)
def test_an_expression_is_left_alone(case):
    before, *inputs = case
    graph = share_common(graph_of(before, *inputs), Notes())
    result, fired = run(simplify, graph)
    assert result.outputs[0] is graph.outputs[0] and not fired


def test_every_rule_fires_in_these_tests():
    """Those that are no patterns; the others fire above on special values."""
    seen = set()
    for before, _, *inputs in FIRES.values():
        _, fired = run(simplify, share_common(graph_of(before, *inputs), Notes()))
        seen |= set(fired)
    assert {rule.name for rule in EXACT if not rule.sides} <= seen


def test_a_cast_is_dropped_only_where_no_value_changes():
    dropped = set()
    for first, middle, last in itertools.product(DTYPES, repeat=3):
        x = mg.input("x", (225,), first)
        graph = Graph((x,), (Astype(last)(Astype(middle)(x)),))
        new, fired = run(simplify, graph)
        if fired and first != middle != last:
            dropped.add(tuple(d.name for d in (first, middle, last)))
        if fired:
            xs = values(first, 225)
            assert_bits(new(xs)[0], graph(xs)[0])
    assert ("float32", "float64", "float16") in dropped
    assert ("uint8", "bfloat16", "int64") in dropped
    assert not {("int64", "float64", "int64"), ("int16", "float16", "int16")} & dropped
    assert not {("float32", "float64", "int32"), ("float16", "bfloat16", "float32")} & dropped


NONNEGATIVE = [abs, ops.exp, ops.sigmoid, ops.square, lambda x: x * x]
PRESERVING = [
    *(ops.add, ops.divide, ops.maximum, ops.minimum, ops.multiply, ops.sqrt),
    *(Max((0,)), Min((0,)), Prod((0,)), Sum((0,)), Astype(F64), ops.flip),
]


def test_what_is_known_to_be_positive_has_no_sign():
    x, y = mg.input("x", (27, 1)), mg.input("y", (27,))
    xs = [values(F32, x.shape) for x in (x, y)]
    known = set()
    for fn in (*NONNEGATIVE, *PRESERVING):
        operands = (x, y)[: 2 if fn in PRESERVING[:5] else 1]
        result = fn(*operands) if fn in NONNEGATIVE else fn(*map(ops.square, operands))
        assert facts.never_negative(result)
        assert fn in NONNEGATIVE or not facts.never_negative(fn(*operands))
        (value,) = Graph((x, y), (result,))(*xs)
        assert not np.signbit(value[~np.isnan(value)]).any()
        known.add(type(result.op))
    assert known >= facts.NONNEGATIVE | facts.PRESERVING
    assert [facts.never_negative(constant(v)) for v in (0.0, -0.0, np.nan, -1.0)] == [1, 0, 1, 0]


# ---------------------------------------------------------------- constants


def test_each_result_of_an_op_is_folded():
    xs = [np.arange(12, dtype="float32").reshape(4, 3), *np.ones((2, 3), "float32")]
    results = BatchNorm(0.1).results(*map(constant, xs))
    graph, fired = run(simplify, Graph((), results))
    assert all(isinstance(y.op, Constant) for y in graph.outputs)
    assert fired == {"constant folded": 3}
    for got, want in zip(graph(), Graph((), results)(), strict=True):
        assert_bits(got, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_folded_constant_keeps_its_dtype_and_bits(dtype):
    x = constant(values(dtype, (4, 75)))
    graph = Graph((), (ops.maximum(x, x[::-1]), x.T.astype("float32"), ops.sum(x, 1)))
    new, _ = run(simplify, graph)
    assert all(isinstance(y.op, Constant) for y in new.outputs)
    for got, want in zip(new(), graph(), strict=True):
        assert_bits(got, want)


@pytest.mark.parametrize(
    "expression",
    [
        lambda: ops.broadcast_to(np.arange(3.0), (2, 3)),
        lambda: constant(np.ones((257, 1))) @ constant(np.ones((1, 257))),
        lambda: ops.permute_dims(constant(np.ones((2, FOLDED))), (1, 0)),
        lambda: ops.take(np.arange(3.0), np.array([3])),
    ],
    ids=["enlarging view", "large result of small operands", "large transpose", "refused operand"],
)
def test_what_does_not_pay_or_fails_is_not_folded(expression):
    y = expression()
    assert run(simplify, Graph((), (y,)))[0].outputs[0] is y


def test_a_large_result_of_large_operands_is_folded():
    x = constant(np.arange(2.0 * FOLDED))
    assert isinstance(run(simplify, Graph((), (x * x,)))[0].outputs[0].op, Constant)


def test_what_is_made_of_a_large_transposed_constant_is_folded():
    x = constant(np.arange(2.0 * FOLDED).reshape(2, FOLDED))
    y = ops.permute_dims(x, (1, 0)) * 2
    [folded] = run(simplify, Graph((), (y,)))[0].outputs
    np.testing.assert_array_equal(folded.op.value, x.op.value.T * 2)


def test_random_numbers_are_neither_folded_nor_shared_nor_drawn_smaller():
    u = ops.random_uniform((3, 4))
    graph = Graph((SEED, STEP), (u + ops.random_uniform((3, 4)), ops.dropout(u, 0.5) + u))
    assert_becomes(optimized, number_streams(graph), share_common(number_streams(graph), Notes()))
    new, _ = run(optimized, number_streams(graph))
    assert sum(node.op.name == "random_uniform" for node in new) == 3
