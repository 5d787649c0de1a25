"""FMA fusion: which products it takes, and that the numbers stay."""

import numpy as np
import pytest
from multiply_adds import count, fused, graph_of, text

import minigraph as mg
from minigraph import ops
from minigraph.graph import FLOATS, Graph, constant
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
    (a * b - c + d, "add((+a*b -c), d)"),
    ((a - b) + c * d, "(+c*d +subtract(a, b))"),
    (c * d + (a - b), "(+c*d +subtract(a, b))"),
    (a * b + c * d + e * f, "(+e*f +(+a*b +c*d))"),
    (a * b + (c * d + e * f), "(+a*b +(+c*d +e*f))"),
    (a + b * c + d * e, "(+d*e +(+b*c +a))"),
    (a + b + c * d - e * f, "(-e*f +(+c*d +add(a, b)))"),
]


@pytest.mark.parametrize(("y", "expected"), FUSED, ids=[text(y) for y, _ in FUSED])
def test_a_product_in_a_sum_is_fused_with_its_sign(y, expected):
    assert [text(y) for y in fused(y).outputs] == [expected]


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
    first = a * b + c * d
    y = first + e * f
    made = [n for n in fused(ops.exp(y)) if n.op.name in ("fma3", "fma4")]
    assert [(n.source, n.turn[0]) for n in made] == [(s.source, s.turn[0]) for s in (first, y)]


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
    assert text(fused(s + d * e + s).outputs[0]) == "add((+d*e +add(a, b)), add(a, b))"


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


@pytest.mark.parametrize("dtype", [*FLOATS, *map(np.dtype, ("int8", "uint8", "uint64"))], ids=str)
@pytest.mark.parametrize("make", SUMS)
def test_every_bit_comes_out_as_without_the_pass(make, dtype):
    rng = np.random.default_rng(0)
    values = [0.0, -0.0, 1.0, -1.0, 2.5, np.inf, -np.inf, np.nan]
    if dtype not in FLOATS:
        values = [0, 1, 2, np.iinfo(dtype).max, np.iinfo(dtype).min]
    xs = [x.ravel().astype(dtype) for x in np.meshgrid(*[np.array(values, dtype)] * 4)]
    wide = (rng.normal(size=(4, 4000)) * 10.0 ** rng.uniform(-4, 4, 4000)).astype(dtype)
    xs = [np.concatenate([x, y]) for x, y in zip(xs, wide, strict=True)]
    nodes = tuple(mg.input(name, xs[0].shape, dtype) for name in "abcd")
    graph = Graph(nodes, (make(*nodes),))
    after = fuse_fma(graph, Notes())
    assert {"fma3", "fma4"}.intersection(count(after))
    with np.errstate(all="ignore"):
        (got,), (want,) = after(*xs), graph(*xs)
    got, want = (np.where(np.isnan(x), np.nan, x) for x in (got, want))
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_equal_products_cancel(device):
    x, y = mg.input("x", (1000,)), mg.input("y", (1000,))
    graph = mg.comp_graph(device, {"graph_opt_level": 2})
    step = graph.compile([x, y], [x * x - y * y, ops.sqrt(x * x - y * y)])
    assert set(step.report().ops) == {"fma4", "sqrt"}
    values = np.random.default_rng(0).normal(size=1000).astype("float32")
    for result in step(values, values):
        np.testing.assert_array_equal(result, 0)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_fast_math_rounds_the_first_product_with_the_sum(device):
    x, y = mg.input("x", (2,)), mg.input("y", (2,))
    near, rounded = np.full(2, 1 + 2**-12, "float32"), np.full(2, 1 + 2**-11, "float32")
    for fast_math, rest in ((False, 0), (True, 2**-24)):
        options = {"graph_opt_level": 3, "graph_opt.fast_math": fast_math}
        for z, value in ((x * x - y, rounded), (x * x - y * y, near)):
            step = mg.comp_graph(device, options).compile([x, y], z)
            np.testing.assert_array_equal(step(near, value), rest)


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
