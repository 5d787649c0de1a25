"""Arithmetic with sizes that are known when a function is called."""

import itertools
import operator
import random

import numpy as np
import pytest

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph, UndecidedSize, with_sizes
from minigraph.graph.sizing import substitute
from minigraph.symbolic import assuming_large, positive_part, same_shape, symbol

N, M = symbol("n"), symbol("m")
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod]
ARITHMETIC += [lambda x, y: positive_part(x - y)] * 2
ORDER = [operator.lt, operator.le, operator.gt, operator.ge]


def grown(seed):
    """A random size, and the function of n and m that it is."""
    rng = random.Random(seed)
    values = [(N, lambda n, m: n), (M, lambda n, m: m)]
    values += [(k, lambda n, m, k=k: k) for k in (1, 2, 3, 7)]
    for _ in range(6):
        (x, f), (y, g) = rng.choice(values), rng.choice(values)
        how = rng.choice(ARITHMETIC)
        if how in (operator.floordiv, operator.mod) and y == 0:
            continue
        values.append((how(x, y), lambda n, m, f=f, g=g, how=how: how(f(n, m), g(n, m))))
    return values[-1]


@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_a_size_computes_what_the_integers_compute(first):
    checked = 0
    for seed in range(first, first + 250):
        size, function = grown(seed)
        for n, m in itertools.product((1, 2, 5, 12), (1, 3, 8)):
            try:
                expected = function(n, m)
            except ZeroDivisionError:
                continue
            assert substitute(size, {"n": n, "m": m}) == expected, f"{size}, seed {seed}"
            checked += 1
    assert checked > 1000


@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_a_comparison_is_decided_where_it_is_the_same_for_all_sizes(first):
    decided = 0
    for seed in range(first, first + 250):
        (x, f), (y, g) = grown(seed), grown(seed + 10_000)
        for compare in ORDER:
            try:
                answer = compare(x, y)
            except UndecidedSize:
                continue
            for n, m in itertools.product((1, 2, 5, 100), repeat=2):
                try:
                    expected = compare(f(n, m), g(n, m))
                except ZeroDivisionError:
                    continue
                assert answer == expected, f"{compare.__name__} of {x} and {y}, seed {seed}"
                decided += 1
    assert decided > 100


def test_equal_sizes_are_equal_however_they_were_computed():
    assert (N + 1) * (N - 1) == N * N - 1
    assert hash((N + M) * 2) == hash(2 * N + M + M)
    assert N * 6 // 3 == 2 * N
    assert N * M * 12 // (4 * N) == 3 * M
    assert N - N == 0
    assert type(N - N) is int
    assert N != M
    assert N != 1


def test_a_division_with_a_rest_stays_a_division():
    half = -(-N // 2)
    assert [substitute(half, {"n": n}) for n in (1, 2, 3, 8)] == [1, 1, 2, 4]
    assert substitute(1 / N, {"n": 4}) == 0.25
    assert substitute((N + 1) ** 0.5, {"n": 8}) == 3


def test_a_slice_that_may_be_cut_has_the_size_of_one_that_is_not():
    cut = N - positive_part(N - 5)
    assert cut == 5 and hash(cut) == hash(5) and cut * M == 5 * M
    assert not same_shape((cut,), (5,))
    assert [substitute(cut, {"n": n}) for n in (1, 5, 9)] == [1, 5, 5]
    assert cut + positive_part(N - 5) == N
    assert positive_part(positive_part(N - 2) - 3) == positive_part(N - 5)
    assert 1 <= cut <= N
    assert not cut // 3 - 1
    assert positive_part(N - 2) // 2 - (N - 2) // 2 + M == M  # which differ for n = 1
    assert substitute(positive_part(N - 2) // 2 - (N - 2) // 2, {"n": 1}) == 1


def test_sizes_that_are_cut_again_and_again_stay_small():
    x, rows = mg.input("x", (None,)), [*range(50)]
    for k in range(3, 9):
        x = x[-20:][x.shape[0] // k : -k : 1 - 2 * (k % 2)][::-1]
        rows = rows[-20:][len(rows) // k : -k : 1 - 2 * (k % 2)][::-1]
        assert len(str(x.shape[0])) < 5000
        assert substitute(x.shape[0], {"batch": 50}) == len(rows)


def test_undecided_comparisons_take_sizes_as_large_where_that_is_asked_for():
    with pytest.raises(UndecidedSize, match="how n compares with 5"):
        _ = N > 5
    with assuming_large():
        assert N > 5
        assert N * M - 100 >= 0
    with pytest.raises(UndecidedSize):
        _ = N <= 5


def test_a_symbolic_size_prints_its_formula():
    assert str(2 * N * M - 1) == "2*m*n - 1"
    assert str(1 - 3 * N + M) == "m - 3*n + 1"
    assert str(-N) == "-n"
    assert str(N // 2) == "(n // 2)"
    assert str((N + 1) // 2 * M) == "((n + 1) // 2)*m"
    assert 0 // (N // 2 + 1) == 0


# ---------------------------------------------------------------- graphs


def test_a_graph_takes_numbers_for_its_sizes():
    x = mg.input("x", (None, 3))
    y = ops.reshape(x, (-1,)) / x.shape[0]
    graph = with_sizes(Graph((x,), (y,)), {"batch": 4})
    assert [x.shape for x in graph.inputs] == [(4, 3)]
    (value,) = graph(np.ones((4, 3), np.float32))
    np.testing.assert_array_equal(value, np.full(12, 0.25, np.float32))
    graph.check()


def test_a_node_without_symbolic_sizes_is_unchanged():
    p, x = mg.Parameter(np.ones(3, np.float32)), mg.input("x", (None, 3))
    square = p * p
    graph = with_sizes(Graph((x,), (x + square,)), {"batch": 2})
    assert any(node is square for node in graph)


def test_what_an_integer_divides_is_taken_out_of_a_quotient():
    assert (2 * N + 1) // 2 == N
    assert (N + 3) // 2 == (N + 1) // 2 + 1 == (N - 1) // 2 + 2
    assert (4 * N * M + 6 * N + M + 5) // 4 == N * M + N + 1 + (2 * N + M + 1) // 4
    assert (N - N) // M == 0
    assert (N + 1) // 2 >= 1
