"""FMA fusion: which products it takes, and that the numbers stay."""

import itertools
from collections import Counter

import numpy as np
import pytest
from multiply_adds import count, fused, graph_of, text

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph, constant
from minigraph.ops.fma import Fma4
from minigraph.passes import levels
from minigraph.passes.kernels.fma import fuse_fma
from minigraph.passes.notes import Notes

a, b, c, d, e, f = (mg.input(name, (2, 3)) for name in "abcdef")


def same_bits(x, y):
    """Whether arrays are equal, down to the signs of zeros; any NaN equals any other."""
    x, y = (np.where(np.isnan(v), np.nan, v) for v in (x, y))
    return x.dtype == y.dtype and x.tobytes() == y.tobytes()


# ---------------------------------------------------------------- what is fused


FUSED = [
    (a * b + c, "(+a*b +c)"),
    (c + a * b, "(+a*b +c)"),
    (a * b - c, "(+a*b -c)"),
    (c - a * b, "(-a*b +c)"),
    (-(a * b) - c, "(-a*b -c)"),
    (-(a * b + c), "negative((+a*b +c))"),
    (d - (a * b + c), "subtract(d, (+a*b +c))"),
    (d - (c - a * b), "subtract(d, (-a*b +c))"),
    (c + -(b * a), "(-a*b +c)"),
    (c - -(-b * a), "(-a*b +c)"),
    (-a * b + c, "(-a*b +c)"),
    (-a * -b - c, "(+a*b -c)"),
    (a * b + c * d, "(+a*b +c*d)"),
    (a * b - c * d, "(+a*b -c*d)"),
    (-(a * b) - d * c, "(-a*b -c*d)"),
    (-(a * b + c * d) * e + f, "(-(+a*b +c*d)*e +f)"),
    (f - (a * b + c * d) * e, "(-(+a*b +c*d)*e +f)"),
    (a * a + b, "(+a*a +b)"),
    (ops.square(a) - b, "(+a*a -b)"),
    (ops.square(-a) + b * b, "(+a*a +b*b)"),
    (a * 2 + 1, "(+2*a +1)"),
    (1 - 2 * a, "(-2*a +1)"),
    (a * b * c + d, "(+c*multiply(a, b) +d)"),
    ((a * b + c) * d + e, "(+(+a*b +c)*d +e)"),
    (ops.exp(a * b + c) + d, "add(d, exp((+a*b +c)))"),
    (a * b + c - d, "subtract((+a*b +c), d)"),
    (a * b - c + d, "subtract((+a*b +d), c)"),
]


@pytest.mark.parametrize(("y", "expected"), FUSED, ids=[text(y) for y, _ in FUSED])
def test_a_product_in_a_sum_is_fused_with_its_sign(y, expected):
    assert [text(y) for y in fused(y).outputs] == [expected]


SIZES = [(k, m) for k in range(1, 5) for m in range(4) if k + m > 1]


@pytest.mark.parametrize(("products", "addends"), SIZES)
def test_each_product_costs_one_op(products, addends):
    for signs in itertools.product((1, -1), repeat=products + addends):
        xs = iter(mg.input(f"x{i}", (2,)) for i in range(2 * products + addends))
        terms = [next(xs) * next(xs) for _ in range(products)] + list(xs)
        first, *others = (t if s > 0 else -t for s, t in zip(signs, terms, strict=True))
        notes = Notes()
        graph = fuse_fma(graph_of(sum(others, first)), notes)
        used = count(graph)
        assert used.pop("add", 0) + used.pop("subtract", 0) == max(addends - 1, 0)
        expected = {"fma3": products} if addends else {"fma3": products - 2, "fma4": 1}
        assert used == notes.fired == Counter(expected)


def test_broadcast_operands_are_fused():
    x, y = mg.input("x", (5, 3, 4, 4)), mg.input("y", (5, 3, 4, 4))
    bias, scale = mg.input("bias", (3, 1, 1)), mg.input("scale", ())
    column, row = mg.input("column", (5, 1)), mg.input("row", (1, 4))
    full = mg.input("full", (5, 4))
    for z in (
        x * y + bias,
        x * scale + bias,
        bias * scale + x,
        column * row + full,
        full * 2 + row,
    ):
        graph = fused(z)
        assert count(graph) == {"fma3": 1}
        assert graph.outputs[0].shape == z.shape
    graph = fused(column * column + row * row)
    assert count(graph) == {"fma4": 1}
    assert graph.outputs[0].shape == (5, 4)


def test_what_is_made_stands_where_the_sum_was():
    y = a * b + c * d + e * f
    z = ops.exp(y)
    made = [n for n in fused(z) if n.op.name in ("fma3", "fma4")]
    assert len(made) == 2
    assert {n.source for n in made} == {y.source}
    assert {n.turn[0] for n in made} == {y.turn[0]}


# ---------------------------------------------------------------- what is left alone


LEFT_ALONE = [
    a + b - c,
    (a + b) + (c + d),
    -(a * b),
    -(-a * b),
    a * b * c,
    (a + b) * (c - d),
    a * b / c,
    (p := a * b) + p,
    p - p + c,
    (n := -(a * b)) + n,
    (a > 0) * (b > 0) + (c > 0),
]


@pytest.mark.parametrize("y", LEFT_ALONE, ids=text)
def test_what_has_no_product_of_its_own_is_left_alone(y):
    assert fused(y).outputs[0] is y


def test_a_product_that_is_an_output_is_left_alone():
    p, y = a * b, c * d
    p_out, sum_out = fused(p, p + y).outputs
    assert p_out is p
    assert text(sum_out) == "(+c*d +multiply(a, b))"
    assert next(x for x in sum_out.inputs if x.op.name == "multiply") is p
    assert fused(p, p + e).outputs[1].op.name == "add"


def test_a_product_with_two_readers_is_left_alone():
    p = a * b
    first, second = fused(p + c, ops.exp(p)).outputs
    assert (text(first), text(second)) == ("add(c, multiply(a, b))", "exp(multiply(a, b))")
    assert text(fused(p + c * d + p).outputs[0]).count("multiply(a, b)") == 2


def test_a_sum_with_two_readers_is_a_term():
    s = a * b + c
    y, z = fused(s + d * e, s * f).outputs
    assert text(y) == "(+d*e +(+a*b +c))"
    assert y.inputs[2] is z.inputs[0]
    s = a + b
    assert text(fused(s + d * e + s).outputs[0]) == "(+d*e +add(add(a, b), add(a, b)))"


def test_a_sum_that_is_an_output_is_a_term():
    s = a * b + c
    inner, outer = fused(s, s + d * e).outputs
    assert text(inner) == "(+a*b +c)"
    assert outer.inputs[2] is inner


def test_a_negation_with_two_readers_is_a_factor():
    n = -a
    y, z = fused(n * b + c, ops.exp(n)).outputs
    assert (text(y), text(z)) == ("(+b*negative(a) +c)", "exp(negative(a))")


def test_outputs_may_be_inputs_constants_and_parameters():
    w = mg.Parameter(np.ones(3), "w")
    one, p = constant(1.0), a * b
    graph = fused(a, w, one, p, p + c)
    assert all(x is y for x, y in zip(graph.outputs, (a, w, one, p), strict=False))


# ---------------------------------------------------------------- the numbers

SUMS = [
    lambda a, b, c, d: a * b + c,
    lambda a, b, c, d: a * b - c,
    lambda a, b, c, d: c - a * b,
    lambda a, b, c, d: -(a * b) - c,
    lambda a, b, c, d: a * b + c + d,
    lambda a, b, c, d: a * b - c - d,
    lambda a, b, c, d: c - a * b - d,
    lambda a, b, c, d: a * b + c * d,
    lambda a, b, c, d: a * b - c * d,
    lambda a, b, c, d: -a * b - c * d,
    lambda a, b, c, d: a * b + c * d - a * d,
    lambda a, b, c, d: a * a - b * c - d,
]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("make", SUMS)
def test_special_values_come_out_as_without_the_pass(make, dtype):
    """Where nothing is rounded and no product overflows: every bit, the signs of zeros included."""
    values = [0.0, -0.0, 1.0, -1.0, 2.5, np.inf, -np.inf, np.nan]
    xs = [x.ravel().astype(a.dtype) for x in np.meshgrid(*[np.array(values)] * 4)]
    nodes = tuple(mg.input(name, xs[0].shape, dtype) for name in "abcd")
    xs = [x.astype(node.dtype) for x, node in zip(xs, nodes, strict=True)]
    graph = Graph(nodes, (make(*nodes),))
    (got,), (want,) = fuse_fma(graph, Notes())(*xs), graph(*xs)
    assert same_bits(got, want)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
@pytest.mark.parametrize("make", SUMS)
def test_integers_come_out_as_without_the_pass(make, dtype):
    info, rng = np.iinfo(dtype), np.random.default_rng(0)
    xs = [rng.integers(info.min, info.max, 500, dtype, endpoint=True) for _ in range(4)]
    nodes = tuple(mg.input(name, (500,), dtype) for name in "abcd")
    graph = Graph(nodes, (make(*nodes),))
    after = fuse_fma(graph, Notes())
    assert {"fma3", "fma4"}.intersection(count(after))
    np.testing.assert_array_equal(after(*xs)[0], graph(*xs)[0])


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_fma4_rounds_its_second_product_and_the_sum(device):
    x = mg.input("x", ())
    step = mg.comp_graph(device).compile([x], Fma4(second="-")(x, x, x, x))
    assert step(1 + 2**-12) == 2**-24


class Magnitude(np.ndarray):
    """Numbers that are only added: a sum of them bounds what rounding can do."""

    __sub__ = np.ndarray.__add__

    def __neg__(self):
        return self


@pytest.mark.parametrize("make", SUMS)
def test_numbers_of_any_size_agree_with_float64(make):
    rng = np.random.default_rng(0)
    xs = [(rng.normal(size=4000) * 10.0 ** rng.uniform(-9, 9, 4000)).astype("f4") for _ in "abcd"]
    nodes = tuple(mg.input(name, (4000,)) for name in "abcd")
    (got,) = fuse_fma(Graph(nodes, (make(*nodes),)), Notes())(*xs)
    wide = [x.astype(np.float64) for x in xs]
    bound = make(*(np.abs(x).view(Magnitude) for x in wide))
    assert (np.abs(got - make(*wide)) <= 2e-7 * np.asarray(bound)).all()


def test_compiled_sums_agree_with_their_meaning(monkeypatch):
    monkeypatch.setattr(levels, "TABLE", (levels.Row(fuse_fma, 2),))
    rng = np.random.default_rng(0)
    nodes, ys, xs = [], [], []
    for dtype in ("float32", "int32"):
        for name, shape in zip("abcd", [(4, 5), (5,), (4, 1), (4, 5)], strict=True):
            xs.append((rng.normal(size=shape) * 9).astype(dtype))
            nodes.append(mg.input(f"{name}_{dtype}", shape, dtype))
        ys += [make(*nodes[-4:]) for make in SUMS[::4]]
    step = mg.comp_graph("cpu", {"graph_opt_level": 2}).compile(nodes, ys)
    assert set(step.report().ops) == {"fma3", "fma4", "add"}
    for got, want in zip(step(*xs), Graph(tuple(nodes), tuple(ys))(*xs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


# ---------------------------------------------------------------- size


def test_a_sum_of_ten_thousand_products_is_one_chain():
    y = a * b
    for _ in range(9_999):
        y = y + ops.sin(a) * b
    notes = Notes()
    graph = fuse_fma(graph_of(y), notes)
    assert notes.fired == {"fma4": 1, "fma3": 9_998}
    assert count(graph) == {"sin": 9_999, **notes.fired}


def test_ten_thousand_sums_are_fused_one_by_one():
    y = a
    for _ in range(10_000):
        y = y * b + c
    notes = Notes()
    assert count(fuse_fma(graph_of(y), notes)) == notes.fired == {"fma3": 10_000}
