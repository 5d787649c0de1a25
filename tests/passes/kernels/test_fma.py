"""FMA fusion: which products it takes, in which order it adds, and that the numbers stay."""

import itertools
from collections import Counter

import numpy as np
import pytest
from new_process import python

import minigraph as mg
from minigraph import ops
from minigraph.graph import Constant, Graph, Input, constant, toposort
from minigraph.ops.arithmetic import Fma3, Fma4
from minigraph.passes import levels
from minigraph.passes.kernels.fma import fuse_fma
from minigraph.passes.kernels.structural_order import StructuralOrder
from minigraph.passes.notes import Notes

a, b, c, d, e, f = (mg.input(name, (2, 3)) for name in "abcdef")


def graph_of(*ys):
    return Graph(tuple(x for x in toposort(ys) if isinstance(x.op, Input)), ys)


def fused(*ys):
    """The graph of `ys` after the pass, which changes nothing when it runs again."""
    graph = fuse_fma(graph_of(*ys), Notes())
    graph.check()
    again = fuse_fma(graph, Notes())
    assert all(x is y for x, y in zip(graph.outputs, again.outputs, strict=True))
    return graph


def text(y):
    """The expression that ends in `y`, with what may change places in alphabetical order."""
    texts = {}
    for node in toposort([y]):
        op, args = node.op, [texts[x] for x in node.inputs]
        if isinstance(op, Fma3):
            texts[node] = f"({op.product}{'*'.join(sorted(args[:2]))} {op.addend}{args[2]})"
        elif isinstance(op, Fma4):
            products = op.first + "*".join(sorted(args[:2])), op.second + "*".join(sorted(args[2:]))
            texts[node] = f"({' '.join(sorted(products))})"
        elif isinstance(op, Constant):
            texts[node] = f"{op.value.item():g}"
        else:
            args = sorted(args) if op.commutative else args
            texts[node] = f"{op.name}({', '.join(args)})" if args else op.name
    return texts[y]


def count(graph):
    return Counter(node.op.name for node in graph if node.inputs)


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


# ---------------------------------------------------------------- the order of the terms


LEAVES = {
    **{name: mg.input(name, (4, 3)) for name in "abcd"},
    **{name: mg.input(name, (4, 1)) for name in "ef"},
    **{name: mg.input(name, (1, 3)) for name in "gh"},
    **{name: mg.input(name, (3,)) for name in "ij"},
    **{name: mg.input(name, ()) for name in "kl"},
}


def random_terms(rng):
    """Signs, each with the name of an addend or of two factors; there is a product among them."""
    names = list(LEAVES)
    sizes = (2, *rng.integers(1, 3, rng.integers(2, 6)))
    terms = [(rng.choice(["+", "-"]), tuple(rng.choice(names, size))) for size in sizes]
    terms[0] = ("+", terms[0][1])
    return terms + terms[: rng.integers(2)]


def written(terms, rng):
    """The sum of terms in some order with some parentheses; all but the leaves is made anew."""
    parts = []
    for sign, names in rng.permutation(np.array(terms, object)):
        x = LEAVES[names[0]]
        if len(names) == 2:
            y = LEAVES[names[1]]
            y = ops.sin(y + 1 if rng.random() < 0.5 else 1 + y)
            if sign == "-" and rng.random() < 0.3:
                x, sign = -x, "+"
            x = x * y if rng.random() < 0.5 else y * x
        parts.append((sign, x))
    while len(parts) > 1:
        i = rng.integers(len(parts) - 1)
        (sign, x), (other, y) = parts[i : i + 2]
        if "+" in (sign, other):  # a sum is added; only a term may be subtracted
            plus, minus = (x, y) if sign == "+" else (y, x)
            parts[i : i + 2] = [("+", x + y if sign == other else plus - minus)]
    return parts[0][1]


@pytest.mark.parametrize("seed", range(40))
def test_the_written_order_changes_no_bit(seed):
    rng = np.random.default_rng(seed)
    terms = random_terms(rng)
    values = [rng.normal(size=x.shape).astype(x.dtype) for x in LEAVES.values()]
    texts, results = set(), set()
    for _ in range(8):
        y = written(terms, rng)
        graph = Graph(tuple(LEAVES.values()), fused(y).outputs)
        assert not {"multiply", "negative"}.intersection(count(graph))
        texts.add(text(graph.outputs[0]))
        (result,) = graph(*values)
        results.add(result.tobytes())
        np.testing.assert_allclose(result, Graph(graph.inputs, (y,))(*values)[0], 1e-4, 1e-5)
    assert len(texts) == len(results) == 1


def test_the_written_order_would_change_bits():
    """The test of the test."""
    rng = np.random.default_rng(0)
    terms = [("+", ("a", "b")), ("-", ("c",)), ("+", ("c", "d")), ("+", ("e",))]
    values = [rng.normal(size=x.shape).astype(x.dtype) for x in LEAVES.values()]
    graphs = [Graph(tuple(LEAVES.values()), (written(terms, rng),)) for _ in range(8)]
    assert len({graph(*values)[0].tobytes() for graph in graphs}) > 1


big, full, column, wide, row, edge, one = (LEAVES[name] for name in "abegijk")


@pytest.mark.parametrize(
    ("y", "made"),
    [
        (full + row * edge + edge, [(3,), (4, 3)]),
        (big * full + edge - row * row - column, [(3,), (4, 3), (4, 3)]),
        (column * column + row + column + column, [(4, 1), (4, 1), (4, 3)]),
        (one - row * row + column * column - column * one, [(4, 1), (4, 1), (4, 3)]),
        (full + wide + row + one * one + column, [(1, 3), (1, 3), (4, 3), (4, 3)]),
    ],
)
def test_small_things_are_added_first(y, made):
    assert [n.shape for n in fused(y) if n.inputs] == made


def test_a_sum_begins_with_an_addend_or_two_products_of_one_shape():
    for y, expected in [
        (row * edge + full + row * row, {"fma3": 2}),
        (row * edge + big * row + big * full, "(+i*j +(+a*b +a*i))"),
        (big * full - row * edge - row * row, "(+a*b +(-i*i -i*j))"),
        (big * full - row - edge, "(+a*b -add(i, j))"),
        (big * big - row + full, "(+a*a +subtract(b, i))"),
    ]:
        graph = fused(y)
        assert expected in (count(graph), text(graph.outputs[0]))


def test_keys_do_not_tell_how_a_node_was_written():
    first, second = (mg.Parameter(np.ones(3), name="w") for _ in range(2))
    other = mg.Parameter(np.ones(3), name="v")
    shown = (
        (a + b, b + a, True),
        (a - b, b - a, False),
        (a * (b + 1), (1 + b) * a, True),
        (a + 1, a + np.float32(1), True),
        (a + 0.0, a + -0.0, False),
        (a + 1, a * 1, False),
        (a.sum(0), a.sum(1), False),
        (a + first, a + second, False),
        (first + second, second + first, True),
        (other + a, first + a, False),
        (a, mg.input("a", (2, 3)), True),
        (a, b, False),
    )
    order = StructuralOrder(graph_of(*(x for x, _, _ in shown), *(y for _, y, _ in shown)))
    for x, y, equal in shown:
        assert (order.key(x) == order.key(y)) == equal, (text(x), text(y))


def test_parameters_of_one_name_are_ordered_by_their_making():
    first, second = (mg.Parameter(np.ones(3)) for _ in range(2))
    x, y = mg.input("x", (3,), "float64"), mg.input("y", (3,), "float64")
    graphs = [fused(first * x + second * x + y), fused(y + x * second + x * first)]
    assert len({str(Graph((x, y), graph.outputs)) for graph in graphs}) == 1
    fma = [[n.inputs for n in graph if n.op.name == "fma3"] for graph in graphs]
    assert [set(inputs[:2]) for inputs in fma[0]] == [set(inputs[:2]) for inputs in fma[1]]


def test_the_order_is_the_same_in_every_process():
    program = """
import minigraph as mg
from minigraph.graph import Graph
from minigraph.passes.kernels.fma import fuse_fma
from minigraph.passes.notes import Notes
xs = tuple(mg.input(f"x{i}", (2,)) for i in range(8))
y = sum(x * x.sum() - xs[0] for x in xs)
print(fuse_fma(Graph(xs, (y,)), Notes()))
"""
    assert len({python("-c", program, PYTHONHASHSEED=seed) for seed in ("1", "2")}) == 1


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
