"""What the candidates of a problem are compared with.

NumPy says what has to come out, and takes long for a convolution.  So where it can find out sums of
the results in less time, it checks the results of the candidate that a heuristic would choose by
these, and the others are compared with that one, element by element.  A result that is wrong
anywhere makes a sum wrong; then NumPy computes all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minigraph.autotune.block import Block
from minigraph.autotune.candidate import Problem
from minigraph.autotune.closeness import (
    TOLERANCE,
    largest_difference,
    root_mean_square,
    widened,
)
from minigraph.autotune.sums import Sums
from minigraph.graph import Array, DType


def checked(problem: Problem, xs: Sequence[Array]) -> tuple[Array, ...]:
    """Return what has to come out of inputs: of the heuristic's choice once its sums are right."""
    if problem.sums:
        results = _by_heuristic(problem, xs)
        if results and _right(problem, problem.sums, results[0], xs):
            return results
    return by_numpy(problem, xs)


def by_numpy(problem: Problem, xs: Sequence[Array]) -> tuple[Array, ...]:
    """Return what has to come out of inputs, computed in float32 or float64."""
    return problem.meaning(*map(widened, xs))


def _by_heuristic(problem: Problem, xs: Sequence[Array]) -> tuple[Array, ...] | None:
    """Return what the heuristic's choice computes; None if it fails, or lays its results out."""
    bench = problem.workbench
    candidate = next((c for c in problem.candidates(None) if not c.reference), None)
    if candidate is None or any(_less_exact(candidate.precision, y.dtype) for y in problem.results):
        return None
    blocks = [Block(bench, spec.shape, spec.dtype) for spec in problem.results]
    results = tuple(block.array for block in blocks)
    for y, layout in zip(results, candidate.layouts[len(xs) :], strict=True):
        if problem.arrange(y, layout).shape != y.shape:
            return None
    try:
        kernel = candidate.make()
        blocks.append(Block(bench, (kernel.scratch,), np.dtype(np.uint8)))
        inputs = [problem.arrange(x, to) for x, to in zip(xs, candidate.layouts, strict=False)]
        for block in blocks:
            block.clear(block.array.nbytes)
        bench.runner(kernel)(inputs, results, blocks[-1].array)
    except Exception:  # of whatever library it is; as a candidate it fails again, and is told of
        return None
    return results if all(block.intact(block.array.nbytes) for block in blocks) else None


def _less_exact(precision: str, dtype: DType) -> bool:
    return TOLERANCE[precision] > max(TOLERANCE["float32"], TOLERANCE[dtype.name])


def _right(problem: Problem, sums: Sums, y: Array, xs: Sequence[Array]) -> bool:
    """Return whether sums of a result are what they have to be by those of the inputs."""
    chunk = problem.workbench.chunk
    with np.errstate(all="ignore"):  # of what may be any numbers
        found, wanted = sums.both(problem.workbench.put, y, xs)
        allowed = TOLERANCE[y.dtype.name] * root_mean_square(y, chunk)
        return largest_difference(found, wanted, chunk) <= allowed < math.inf
