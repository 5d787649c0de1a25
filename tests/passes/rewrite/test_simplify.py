"""Level 1: each rewrite fires where it is valid, nowhere else, and changes no bit."""

import itertools

import numpy as np
import pytest
from elementwise_samples import specials
from rewriting import F32, I32, X, Y, assert_becomes, assert_bits, optimized, run, values

import minigraph as mg
from minigraph import DTypeError, ops
from minigraph.graph import BOOL, DTYPES, FLOATS, Constant, Graph, constant
from minigraph.ops.batch_norm import BatchNorm
from minigraph.ops.comparison import Comparison
from minigraph.ops.elementwise import Astype, kind
from minigraph.ops.random import SEED, STEP, number_streams
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.rule import rewrite
from minigraph.passes.rewrite.simplification import (
    EXACT,
    MAX_COMPARED_BYTES,
    MAX_FOLDED_ELEMENTS,
    share_common,
    simplify,
)

# ---------------------------------------------------------------- every rule, on special values


PATTERNS = [rule for rule in EXACT if rule.sides]


def candidates(x):
    """Yield expressions that a variable may have to stand for so that a rule matches."""
    yield lambda: x
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
        result, want = new(*xs)[0], graph(*xs)[0]
        assert_bits(result, want)
    assert fired


# ---------------------------------------------------------------- results of rules


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


# ---------------------------------------------------------------- constants


def test_each_result_of_an_op_is_folded():
    xs = [np.arange(12, dtype="float32").reshape(4, 3), *np.ones((2, 3), "float32")]
    results = BatchNorm(0.1).results(*map(constant, xs))
    graph, fired = run(simplify, Graph((), results))
    assert all(isinstance(y.op, Constant) for y in graph.outputs)
    assert fired == {"constant folded": 3}
    for result, want in zip(graph(), Graph((), results)(), strict=True):
        assert_bits(result, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_folded_constant_keeps_its_dtype_and_bits(dtype):
    x = constant(values(dtype, (4, 75)))
    graph = Graph((), (ops.maximum(x, x[::-1]), x.T.astype("float32"), ops.sum(x, 1)))
    new, _ = run(simplify, graph)
    assert all(isinstance(y.op, Constant) for y in new.outputs)
    for result, want in zip(new(), graph(), strict=True):
        assert_bits(result, want)


@pytest.mark.parametrize(
    "expression",
    [
        lambda: ops.broadcast_to(np.arange(3.0), (2, 3)),
        lambda: constant(np.ones((257, 1))) @ constant(np.ones((1, 257))),
        lambda: ops.permute_dims(constant(np.ones((2, MAX_FOLDED_ELEMENTS))), (1, 0)),
        lambda: ops.take(np.arange(3.0), np.array([3])),
    ],
    ids=["enlarging view", "large result of small operands", "large transpose", "refused operand"],
)
def test_what_does_not_pay_or_fails_is_not_folded(expression):
    y = expression()
    assert run(simplify, Graph((), (y,)))[0].outputs[0] is y


def test_a_large_result_of_large_operands_is_folded():
    x = constant(np.arange(2.0 * MAX_FOLDED_ELEMENTS))
    assert isinstance(run(simplify, Graph((), (x * x,)))[0].outputs[0].op, Constant)


def test_what_is_made_of_a_large_transposed_constant_is_folded():
    x = constant(np.arange(2.0 * MAX_FOLDED_ELEMENTS).reshape(2, MAX_FOLDED_ELEMENTS))
    y = ops.permute_dims(x, (1, 0)) * 2
    [folded] = run(simplify, Graph((), (y,)))[0].outputs
    np.testing.assert_array_equal(folded.op.value, x.op.value.T * 2)


def test_random_numbers_are_neither_folded_nor_shared_nor_drawn_smaller():
    u = ops.random_uniform((3, 4))
    graph = Graph((SEED, STEP), (u + ops.random_uniform((3, 4)), ops.dropout(u, 0.5) + u))
    assert_becomes(optimized, number_streams(graph), share_common(number_streams(graph), Notes()))
    new, _ = run(optimized, number_streams(graph))
    assert sum(node.op.name == "random_uniform" for node in new) == 3


# ---------------------------------------------------------------- common subexpressions


def shared(*outputs):
    """Return the outputs after equal nodes are shared."""
    return run(share_common, Graph((X, Y), outputs))[0].outputs


def test_a_large_constant_is_equal_only_to_itself():
    large = np.zeros(MAX_COMPARED_BYTES + 1, "int8")
    x, y = constant(large), constant(large)
    a, b, c, d = shared(x, y, -x, -x)
    assert a is not b and c is d


def test_parameters_and_inputs_of_one_name_differ():
    p, q = mg.Parameter(np.ones(3), "p"), mg.Parameter(np.ones(3), "p")
    x, y = mg.input("x", (3,)), mg.input("x", (3,))
    result, fired = run(share_common, Graph((x, y), (p, q, x * 2, y * 2)))
    assert len(set(result.outputs)) == 4 and fired == {"shared": 1}


def test_the_node_made_first_stays():
    early = X * Y
    late = ops.exp(Y * X)
    exp, product = shared(late, early)
    assert product is early and exp.inputs[0] is early and exp.order[0] == late.order[0]
