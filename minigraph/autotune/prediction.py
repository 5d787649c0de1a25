"""How long candidates take for sizes that were never measured: a model of cost.

The model is fitted to the tables of the problem's family, which differ from it in sizes only.  It
is local (Nadaraya and Watson, 1964): each table counts by how near its sizes are.  The best time
grows with the root of the product of all sizes, as that of a matrix product does; how many times
as long as the best each candidate takes is a mean over the tables.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import structs

from minigraph.autotune.measurement import Key, Measurement, ProblemTable

REACH = 1.0  # a table whose sizes are e**REACH times as large, in all, counts 1/e as much
LISTS = re.compile(r"(?<=\[)[\d, ]+(?=\])|(?<=shape=\()[\d, ]+(?=\))")


class Known(NamedTuple):
    """A measured problem: the logarithms of its sizes, and its table."""

    sizes: npt.NDArray[np.float64]
    table: ProblemTable


@functools.lru_cache(1 << 14)  # each problem is compared with all that were measured
def family_of(subject: str) -> str:
    """Return what a subject has in common with those that differ from it in sizes only.

    >>> family_of("matmul float32[32, 784] float32[784, 128], 2 threads")
    'matmul float32[] float32[], 2 threads'
    """
    return LISTS.sub("", subject)


def sizes_of(subject: str) -> npt.NDArray[np.float64]:
    """Return the logarithms of the sizes that a subject names.

    >>> np.exp(sizes_of("matmul float32[32, 784] float32[784, 128], 2 threads")).round()
    array([ 32., 784., 784., 128.])
    """
    numbers = re.findall(r"\d+", " ".join(LISTS.findall(subject)))
    return np.log(np.maximum(np.array(numbers, float), 1))


def predicted(subject: str, tables: Iterable[ProblemTable]) -> ProblemTable | None:
    """Return what is expected of a problem's candidates; None if no table is of its family.

    tables  of problems that were measured; those of other families count for nothing
    """
    family, sizes = family_of(subject), sizes_of(subject)
    related = [Known(sizes_of(t.subject), t) for t in tables if family_of(t.subject) == family]
    timed = [k for k in related if k.sizes.shape == sizes.shape and _seconds(k.table)]
    return ProblemTable(subject, _rows(sizes, timed)) if timed else None


def _rows(sizes: npt.NDArray[np.float64], known: Sequence[Known]) -> tuple[Measurement, ...]:
    """Return a measurement, never made, for each candidate of the tables, the nearest one first."""
    distances = [float(np.abs(sizes - k.sizes).sum()) for k in known]
    nearest = [known[i] for i in np.argsort(distances, kind="stable")]
    weights = np.exp((min(distances) - np.sort(distances)) / REACH)
    best = [np.log(min(_seconds(k.table).values())) for k in nearest]
    growth = [(sizes - k.sizes).sum() / 2 for k in nearest]
    base = np.average(np.add(best, growth), weights=weights)
    ratios: dict[Key, list[tuple[float, float]]] = defaultdict(list)  # and their weights
    rows: dict[Key, Measurement] = {}
    for each, least, weight in zip(nearest, best, weights, strict=True):
        for row in each.table.measurements:
            if row.seconds and not row.error:
                rows.setdefault(row.key, row)
                ratios[row.key].append((np.log(row.seconds) - least, weight))
    expected = {key: np.exp(base + _mean(ratios[key])) for key in rows}
    return tuple(
        structs.replace(row, seconds=float(expected[key]), spread=0.0, rounds=0)
        for key, row in rows.items()
    )


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    values, weights = zip(*weighted, strict=True)
    return float(np.average(values, weights=weights))


def _seconds(table: ProblemTable) -> dict[Key, float]:
    return {m.key: m.seconds for m in table.measurements if m.seconds and not m.error}
