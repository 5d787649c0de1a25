"""A problem's random inputs, what has to come out, and memory that shows stray writes.

NumPy says what has to come out, and takes long for a convolution.  So where it can find out sums of
the results in less time, it checks the results of the candidate that a heuristic would choose by
these, and the others are compared with that one, element by element.  A result that is wrong
anywhere makes a sum wrong; then NumPy computes all.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from minigraph.autotune.candidate import Candidate, Problem, Workbench
from minigraph.autotune.checking import (
    TOLERANCE,
    Sums,
    largest_difference,
    root_mean_square,
    summed,
    widened,
)
from minigraph.graph import Array, DType, Spec

GUARD = 4096  # bytes around each array that nobody may write to
FILL = 0xFF  # in guards and, before a check, in outputs and scratch: a NaN in every float type
POOL = 1_048_573  # random numbers; a prime, so that no stride of a kernel divides it

BYTES = np.dtype(np.uint8)


class Block:
    """An array in memory of its own, between guards, once it is cleared or written."""

    def __init__(self, bench: Workbench, shape: tuple[int, ...], dtype: DType) -> None:
        nbytes = math.prod(shape) * dtype.itemsize
        # Whole words, for the checksum.
        self.bytes = bench.empty(GUARD + -(-nbytes // 8) * 8 + GUARD)
        self.array = self.bytes[GUARD : GUARD + nbytes].view(dtype).reshape(shape)

    def clear(self, nbytes: int) -> None:
        """Make NaN of the first `nbytes` of the array, and a guard of what is next to them."""
        self.bytes[: GUARD + nbytes + GUARD].fill(FILL)

    def intact(self, nbytes: int) -> bool:
        """Return whether nobody has written next to the first `nbytes` of the array."""
        before, after = self.bytes[:GUARD], self.bytes[GUARD + nbytes :][:GUARD]
        return bool((before == FILL).all() and (after == FILL).all())

    def write(self, values: Array) -> None:
        """Set the array and, around it, the guards."""
        self.bytes[:GUARD].fill(FILL)
        self.bytes[GUARD + self.array.nbytes :].fill(FILL)
        self.array[...] = values
        self._sum = self._checksum()

    def changed(self) -> bool:
        """Return whether somebody has written to the array or its guards since `write`."""
        return self._checksum() != self._sum

    def _checksum(self) -> int:
        """Return a sum of all bytes: it shows any write that changes one word."""
        return int(self.bytes.view(np.uint64).sum())


class Data:
    """What the candidates of a problem share.

    Inputs and outputs are blocks by position and layout, made when a candidate first asks for
    them, and the scratch is as large as the largest.
    """

    def __init__(self, problem: Problem, bench: Workbench) -> None:
        self.problem = problem
        self.bench = bench
        pool = self.bench.put(_pool())
        self.plain = [
            self._normal(pool, spec, zlib.crc32(f"{i} {problem.subject}".encode()))
            for i, spec in enumerate(problem.inputs)
        ]
        self.reference = checked(problem, bench, self.plain)
        self.scale = [root_mean_square(x, self.bench.chunk) for x in self.reference]
        self.wanted: dict[tuple[int, Any], Array] = {}
        self.inputs: dict[tuple[int, Any], Block] = {}
        self.outputs: dict[tuple[int, Any], Block] = {}
        self.scratch = Block(self.bench, (0,), BYTES)

    def _normal(self, pool: Array, spec: Spec, seed: int) -> Array:
        """Return random numbers: those of the pool, again and again, from where the seed says."""
        array = self._array(spec)
        flat, done = array.reshape(-1), 0
        while done < flat.size:
            numbers = pool[(seed + done) % POOL :][: flat.size - done]
            flat[done : done + numbers.size] = numbers.astype(spec.dtype)
            done += numbers.size
        return array

    def _array(self, spec: Spec) -> Array:
        return self.bench.empty(spec.nbytes).view(spec.dtype).reshape(spec.shape)

    def operands(self, candidate: Candidate) -> tuple[list[Block], list[Block]]:
        """Return the blocks of a candidate's inputs and of its results."""
        n = len(self.plain)
        inputs = list(enumerate(candidate.layouts[:n]))
        results = list(enumerate(candidate.layouts[n:]))
        for key in inputs:
            if key not in self.inputs:
                arranged = self.problem.arrange(self.plain[key[0]], key[1])
                self.inputs[key] = Block(self.bench, arranged.shape, arranged.dtype)
                self.inputs[key].write(arranged)
        for key in results:
            if key not in self.outputs:
                arranged = self.problem.arrange(self.reference[key[0]], key[1])
                self.wanted[key] = self._array(Spec(arranged.shape, arranged.dtype))
                self.wanted[key][...] = arranged
                dtype = self.problem.results[key[0]].dtype
                self.outputs[key] = Block(self.bench, arranged.shape, dtype)
        return [self.inputs[key] for key in inputs], [self.outputs[key] for key in results]

    def reserve(self, nbytes: int) -> None:
        """Make the scratch at least as large as this."""
        if self.scratch.array.nbytes < nbytes:
            self.scratch = Block(self.bench, (nbytes,), BYTES)

    def restore(self) -> None:
        """Write the inputs again."""
        for (i, layout), block in self.inputs.items():
            block.write(self.problem.arrange(self.plain[i], layout))

    def wrong(self, candidate: Candidate) -> str:
        """Return what is wrong with the results that a candidate has left, or an empty string."""
        for i, layout in enumerate(candidate.layouts[len(self.plain) :]):
            got = self.outputs[i, layout].array
            error = largest_difference(got, self.wanted[i, layout], self.bench.chunk)
            tolerance = max(TOLERANCE[candidate.precision], TOLERANCE[got.dtype.name])
            if math.isnan(error):
                return "wrong result: NaN, or not written"
            if error > tolerance * self.scale[i]:
                allowed = f"{tolerance:g} times {self.scale[i]:.3g} is allowed"
                return f"wrong result: off by {error:.3g}, {allowed}"
        return ""


def warm(bench: Workbench, dtypes: Iterable[DType]) -> None:
    """Do once what checks do: CuPy compiles its kernels then, which no budget has to pay for."""
    with bench.current(), np.errstate(all="ignore"):
        ones = bench.put(np.ones((2, 2), np.float32))
        for dtype in dtypes:
            block = Block(bench, ones.shape, dtype)
            block.clear(block.array.nbytes)
            block.write(ones.astype(dtype))
            block.changed()
            block.intact(block.array.nbytes)
            root_mean_square(block.array, bench.chunk)
            largest_difference(block.array, block.array, bench.chunk)
            summed(block.array, 1, ones[:1])


@functools.cache
def _pool() -> Array:
    return np.random.default_rng(0).standard_normal(POOL, np.float32)


# ---------------------------------------------------------------- what has to come out


def checked(problem: Problem, bench: Workbench, xs: Sequence[Array]) -> tuple[Array, ...]:
    """Return what has to come out of inputs: of the heuristic's choice once its sums are right."""
    if problem.sums:
        results = _by_heuristic(problem, bench, xs)
        if results and _sums_agree(bench, problem.sums, results[0], xs):
            return results
    return by_numpy(problem, xs)


def by_numpy(problem: Problem, xs: Sequence[Array]) -> tuple[Array, ...]:
    """Return what has to come out of inputs, computed in float32 or float64."""
    return problem.meaning(*map(widened, xs))


def _by_heuristic(
    problem: Problem, bench: Workbench, xs: Sequence[Array]
) -> tuple[Array, ...] | None:
    """Return what the heuristic's choice computes; None if it fails, or lays its results out."""
    candidate = next(iter(problem.candidates()), None)
    if candidate is None or any(_less_exact(candidate.precision, y.dtype) for y in problem.results):
        return None
    blocks = [Block(bench, spec.shape, spec.dtype) for spec in problem.results]
    results = tuple(block.array for block in blocks)
    for y, layout in zip(results, candidate.layouts[len(xs) :], strict=True):
        if problem.arrange(y, layout).shape != y.shape:
            return None
    try:
        kernel = candidate.kernel
        blocks.append(Block(bench, (kernel.scratch,), BYTES))
        inputs = [problem.arrange(x, to) for x, to in zip(xs, candidate.layouts, strict=False)]
        for block in blocks:
            block.clear(block.array.nbytes)
        bench.runner(kernel)(inputs, results, blocks[-1].array)
        intact = all(block.intact(block.array.nbytes) for block in blocks)
    except Exception as error:  # of whatever library; it is noted when the candidate is tried
        bench.examine(error, candidate.name)
        return None
    return results if intact else None


def _less_exact(precision: str, dtype: DType) -> bool:
    return TOLERANCE[precision] > max(TOLERANCE["float32"], TOLERANCE[dtype.name])


def _sums_agree(bench: Workbench, sums: Sums, y: Array, xs: Sequence[Array]) -> bool:
    """Return whether sums of a result are what they have to be by those of the inputs."""
    with np.errstate(all="ignore"):  # of what may be any numbers
        got, wanted = sums.both(bench.put, y, xs)
        allowed = TOLERANCE[y.dtype.name] * root_mean_square(y, bench.chunk)
        return largest_difference(got, wanted, bench.chunk) <= allowed < math.inf
