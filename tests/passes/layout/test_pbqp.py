"""Partitioned Boolean quadratic problems: `minigraph.passes.layout.pbqp`."""

import itertools

import numpy as np
import pytest

from minigraph.passes.layout import pbqp
from minigraph.passes.layout.pbqp import minimise, total_cost


def problem(rng, variables, edges):
    sizes = rng.integers(1, 4, variables)
    single = [rng.random(n) for n in sizes]
    every = list(itertools.combinations(range(variables), 2))
    chosen = rng.choice(len(every), min(edges, len(every)), replace=False)
    return single, {every[i]: rng.random([sizes[v] for v in every[i]]) * 2 for i in chosen}


def cheapest(single, pairs):
    every = itertools.product(*(range(len(costs)) for costs in single))
    return min(total_cost(options, single, pairs) for options in every)


@pytest.mark.parametrize("seed", range(60))
def test_no_other_options_are_cheaper(seed):
    rng = np.random.default_rng(seed)
    single, pairs = problem(rng, rng.integers(1, 8), rng.integers(0, 15))
    options, total = minimise(single, pairs)
    assert total == total_cost(options, single, pairs) == pytest.approx(cheapest(single, pairs))


@pytest.mark.parametrize("seed", range(20))
def test_a_guess_is_consistent_and_no_worse_than_twice_the_cheapest(seed, monkeypatch):
    monkeypatch.setattr(pbqp, "MAX_NEIGHBOURS", 2)
    rng = np.random.default_rng(seed)
    single, pairs = problem(rng, 7, 15)
    options, total = minimise(single, pairs)
    assert total == total_cost(options, single, pairs)
    assert total <= 2 * cheapest(single, pairs)


def test_of_equally_cheap_options_the_first_is_taken():
    assert minimise([np.ones(3)] * 4, {(0, 1): np.ones((3, 3))}) == ([0, 0, 0, 0], 5.0)


def test_neighbours_agree_where_disagreeing_costs_more_than_each_gains():
    disagree = 5 * (1 - np.eye(2))
    single = [np.array([0.0, 3.0]), np.array([2.0, 0.0]), np.array([0.0, 1.0])]
    assert minimise(single, {(0, 1): disagree, (1, 2): disagree})[0] == [0, 0, 0]
    assert minimise(single, {(0, 1): disagree / 5, (1, 2): disagree / 5})[0] == [0, 0, 0]
    assert minimise(single, {(0, 1): disagree / 10, (1, 2): disagree / 10})[0] == [0, 1, 0]


def test_nothing_to_choose_costs_nothing():
    assert minimise([], {}) == ([], 0)


def test_a_chain_of_ten_thousand_variables_is_solved():
    rng = np.random.default_rng(0)
    single = [rng.random(3) for _ in range(10_000)]
    pairs = {(v, v + 1): rng.random((3, 3)) for v in range(9_999)}
    options, total = minimise(single, pairs)
    assert total <= min(total_cost([o] * 10_000, single, pairs) for o in range(3))
    assert len(options) == 10_000
