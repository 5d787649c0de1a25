"""Partitioned Boolean quadratic problems (PBQP): the cheapest options of many variables.

The cost of an option depends on the options of neighbouring variables.  Anderson and Gregg (2018,
"Optimal DNN primitive selection with partitioned Boolean quadratic programming") choose layouts in
this way.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from minigraph.graph import Array

WIDEST = 9  # variables in a table, at most: with 3 options each, the table has 20,000 numbers


class CostTable(NamedTuple):
    """The costs of the options of some variables: an array with an axis for each variable."""

    variables: tuple[int, ...]
    costs: Array


def minimise(
    single: Sequence[Array], pairs: Mapping[tuple[int, int], Array]
) -> tuple[list[int], float]:
    """Return an option for each variable, and their total cost.

    single  for each variable the cost of each of its options
    pairs   for two variables the cost of each pair of their options, an array with two axes

    Variables are eliminated one after the other, the one with the fewest neighbours first: a table
    keeps its best option for each choice of its neighbours (Bertelè and Brioschi, 1972).  That is
    exact.  A variable with too many neighbours takes the option that is cheapest if they choose
    what suits it, which is a heuristic.  Of equally cheap options the first is taken.
    """
    tables = [CostTable((v,), np.asarray(costs, float)) for v, costs in enumerate(single)]
    tables += [CostTable(pair, np.asarray(costs, float)) for pair, costs in pairs.items()]
    by_variable: dict[int, list[CostTable]] = {v: [] for v in range(len(single))}
    for table in tables:
        for v in table.variables:
            by_variable[v].append(table)
    best: list[CostTable] = []  # for each eliminated variable, last in its table, its best options
    queue = [(len(_neighbours(v, by_variable)), v) for v in by_variable]
    heapq.heapify(queue)
    while queue:
        count, v = heapq.heappop(queue)
        if v not in by_variable:
            continue
        around = _neighbours(v, by_variable)
        if len(around) > count:  # it has gained neighbours since
            heapq.heappush(queue, (len(around), v))
            continue
        mine, others = by_variable.pop(v), around
        if len(around) >= WIDEST:
            mine = _settled(v, mine, by_variable)
            around = []
        total = _sum((*around, v), mine)
        best.append(CostTable((*around, v), total.argmin(-1)))
        rest = CostTable(tuple(around), total.min(-1))
        for u in around:
            by_variable[u] = [t for t in by_variable[u] if v not in t.variables] + [rest]
        for u in others:
            heapq.heappush(queue, (len(_neighbours(u, by_variable)), u))
    options = [0] * len(single)
    for (*around, v), chosen in reversed(best):
        options[v] = int(chosen[tuple(options[u] for u in around)])
    return options, total_cost(options, single, pairs)


def total_cost(
    options: Sequence[int], single: Sequence[Array], pairs: Mapping[tuple[int, int], Array]
) -> float:
    alone = sum(float(costs[option]) for costs, option in zip(single, options, strict=True))
    return alone + sum(float(t[options[u], options[v]]) for (u, v), t in pairs.items())


def _neighbours(v: int, by_variable: Mapping[int, Sequence[CostTable]]) -> list[int]:
    return sorted({u for table in by_variable[v] for u in table.variables} - {v})


def _settled(
    v: int, mine: Sequence[CostTable], by_variable: dict[int, list[CostTable]]
) -> list[CostTable]:
    """Choose for `v`, reduce the tables of its neighbours, and return the table of the choice."""
    alone = np.zeros(())
    for table in mine:
        axis = table.variables.index(v)
        others = tuple(a for a in range(table.costs.ndim) if a != axis)
        alone = alone + table.costs.min(others)
    option = int(alone.argmin())
    for table in mine:
        rest = tuple(u for u in table.variables if u != v)
        given = CostTable(rest, table.costs.take(option, table.variables.index(v)))
        for u in rest:
            by_variable[u] = [t for t in by_variable[u] if t is not table] + [given]
    fixed = np.full(alone.shape, np.inf)
    fixed[option] = 0
    return [CostTable((v,), fixed)]


def _sum(variables: tuple[int, ...], tables: Sequence[CostTable]) -> Array:
    """Add tables up over all choices of `variables`."""
    axis = {v: i for i, v in enumerate(variables)}
    total = np.zeros((1,) * len(variables))
    for table in tables:
        order = np.argsort([axis[v] for v in table.variables])
        shape = [1] * len(variables)
        for v, n in zip(table.variables, table.costs.shape, strict=True):
            shape[axis[v]] = n
        total = total + table.costs.transpose(order).reshape(shape)
    return total
