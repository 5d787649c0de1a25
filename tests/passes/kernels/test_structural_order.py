"""The order in which FMA fusion adds: by what terms compute, not by how they were written."""

import numpy as np
import pytest
from multiply_adds import count, fused, graph_of, text
from new_process import python

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph
from minigraph.passes.kernels.structural_order import StructuralOrder

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
    a, b = (mg.input(name, (2, 3)) for name in "ab")
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
