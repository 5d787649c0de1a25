"""Partitioned Boolean quadratic problems (PBQP): the cheapest assignment of options to variables.

The cost of an option depends on the options of neighbouring variables.  Anderson and Gregg (2018,
"Optimal DNN primitive selection with partitioned Boolean quadratic programming") select layouts
with it.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from minigraph.graph import Array

MAX_NEIGHBOURS = 9  # of a variable in one table, which has 20,000 numbers with 3 options each


class CostTable(NamedTuple):
    """The costs of the options of some variables: an array with an axis for each variable."""

    variables: tuple[int, ...]
    costs: Array


def minimise(
    single: Sequence[Array], pairs: Mapping[tuple[int, int], Array]
) -> tuple[list[int], float]:
    """Return an option for each variable, and their total cost.

    single  for each variable the costs of its options
    pairs   for two variables the costs of all pairs of their options, an array with two axes

    Variables are eliminated one after the other, the one with the fewest neighbours first: a table
    stores its best option for all options of its neighbours (Bertelè and Brioschi, 1972), which is
    exact.  As a heuristic, a variable with too many neighbours gets the option that is cheapest if
    each neighbour takes its best option for it.  The first of equally cheap options wins.
    """
    tables = [CostTable((v,), np.asarray(costs, float)) for v, costs in enumerate(single)]
    tables += [CostTable(pair, np.asarray(costs, float)) for pair, costs in pairs.items()]
    by_variable: dict[int, list[CostTable]] = {v: [] for v in range(len(single))}
    for table in tables:
        for v in table.variables:
            by_variable[v].append(table)
    best: list[CostTable] = []  # each has the best options of its last variable
    queue = [(len(_neighbours(v, by_variable)), v) for v in by_variable]
    heapq.heapify(queue)
    while queue:
        count, v = heapq.heappop(queue)
        if v not in by_variable:
            continue
        neighbours = _neighbours(v, by_variable)
        if len(neighbours) > count:  # an elimination has added neighbours
            heapq.heappush(queue, (len(neighbours), v))
            continue
        involved, others = by_variable.pop(v), neighbours
        if len(neighbours) >= MAX_NEIGHBOURS:
            involved = _fix_option(v, involved, by_variable)
            neighbours = []
        total = _sum((*neighbours, v), involved)
        best.append(CostTable((*neighbours, v), total.argmin(-1)))
        reduced = CostTable(tuple(neighbours), total.min(-1))
        for u in neighbours:
            by_variable[u] = [t for t in by_variable[u] if v not in t.variables] + [reduced]
        for u in others:
            heapq.heappush(queue, (len(_neighbours(u, by_variable)), u))
    options = [0] * len(single)
    for (*neighbours, v), best_options in reversed(best):
        options[v] = int(best_options[tuple(options[u] for u in neighbours)])
    return options, total_cost(options, single, pairs)


def total_cost(
    options: Sequence[int], single: Sequence[Array], pairs: Mapping[tuple[int, int], Array]
) -> float:
    """Return the total cost of an option for each variable: see `minimise`."""
    total = sum(float(costs[option]) for costs, option in zip(single, options, strict=True))
    return total + sum(float(t[options[u], options[v]]) for (u, v), t in pairs.items())


def _neighbours(v: int, by_variable: Mapping[int, Sequence[CostTable]]) -> list[int]:
    return sorted({u for table in by_variable[v] for u in table.variables} - {v})


def _fix_option(
    v: int, tables: Sequence[CostTable], by_variable: dict[int, list[CostTable]]
) -> list[CostTable]:
    """Fix the option of `v`, reduce its neighbours' tables, and return a table that enforces it."""
    minimum = np.zeros(())
    for table in tables:
        axis = table.variables.index(v)
        others = tuple(a for a in range(table.costs.ndim) if a != axis)
        minimum = minimum + table.costs.min(others)
    option = int(minimum.argmin())
    for table in tables:
        other_variables = tuple(u for u in table.variables if u != v)
        reduced = CostTable(other_variables, table.costs.take(option, table.variables.index(v)))
        for u in other_variables:
            by_variable[u] = [t for t in by_variable[u] if t is not table] + [reduced]
    costs = np.full(minimum.shape, np.inf)
    costs[option] = 0
    return [CostTable((v,), costs)]


def _sum(variables: tuple[int, ...], tables: Sequence[CostTable]) -> Array:
    """Return the sum of tables, as an array with an axis for each of `variables`."""
    axis = {v: i for i, v in enumerate(variables)}
    total = np.zeros((1,) * len(variables))
    for table in tables:
        order = np.argsort([axis[v] for v in table.variables])
        shape = [1] * len(variables)
        for v, n in zip(table.variables, table.costs.shape, strict=True):
            shape[axis[v]] = n
        total = total + table.costs.transpose(order).reshape(shape)
    return total
