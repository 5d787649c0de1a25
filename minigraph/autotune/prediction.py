"""How long candidates take for sizes that were never measured: a model of cost.

The model is fitted to the tables of the problem's family, which differ from it in sizes only.  It
is local (Nadaraya and Watson, 1964): each table counts by how near its sizes are.  The best time
grows with the root of the product of all sizes, as that of a matrix product does; how many times
as long as the best each candidate takes is a mean over the tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import structs

from minigraph.autotune.measurement import Key, Measurement, ProblemTable

REACH = 1.0  # a table whose sizes are e**REACH times as large, in all, counts 1/e as much


def predict(sizes: Sequence[int], tables: Sequence[ProblemTable]) -> list[Measurement]:
    """Return a measurement, never made, for each candidate of the tables, the nearest one first.

    sizes   of the problem
    tables  of its family
    """
    timed = [t for t in tables if len(t.sizes) == len(sizes) and _timed(t)]
    if not timed:
        return []
    differences = [_logarithms(sizes) - _logarithms(t.sizes) for t in timed]
    distances = [float(np.abs(d).sum()) for d in differences]
    order = np.argsort(distances, kind="stable")
    nearest = [timed[i] for i in order]
    weights = np.exp((min(distances) - np.sort(distances)) / REACH)
    best = [np.log(min(m.seconds or 0 for m in _timed(t))) for t in nearest]
    growth = [differences[i].sum() / 2 for i in order]
    base = np.average(np.add(best, growth), weights=weights)
    ratios: dict[Key, list[tuple[float, float]]] = defaultdict(list)  # and their weights
    rows: dict[Key, Measurement] = {}
    for each, least, weight in zip(nearest, best, weights, strict=True):
        for row in _timed(each):
            rows.setdefault(row.key, row)
            ratios[row.key].append((np.log(row.seconds or 1) - least, weight))
    expected = {key: np.exp(base + _mean(ratios[key])) for key in rows}
    return [
        structs.replace(row, seconds=float(expected[key]), spread=0.0, rounds=0)
        for key, row in rows.items()
    ]


def _logarithms(sizes: Sequence[int]) -> npt.NDArray[np.float64]:
    return np.log(np.maximum(np.array(sizes, float), 1))


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    values, weights = zip(*weighted, strict=True)
    return float(np.average(values, weights=weights))


def _timed(table: ProblemTable) -> list[Measurement]:
    return [m for m in table.measurements if m.seconds and not m.error]
