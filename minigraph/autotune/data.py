"""A problem's random inputs, what has to come out, and memory that shows stray writes."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Iterator

import numpy as np

from minigraph.autotune.candidate import Candidate, Problem, Workbench
from minigraph.graph import Array, DType, Spec

# How far a result may be from the reference, relative to the root mean square of the reference.
# The inputs are drawn from N(0, 1), so that a sum of n products has a root mean square of sqrt(n):
# its rounding error stays below 1e-3 of that in float32 up to a million products, and a single
# product that is missing does not.  The other precisions follow from their own rounding.
TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "tf32": 1e-2, "float16": 2e-2, "bfloat16": 0.1}

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

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.bench = problem.workbench
        self.epoch = self.bench.epoch
        pool = self.bench.put(_pool())
        self.plain = [
            self._normal(pool, spec, zlib.crc32(f"{i} {problem.subject}".encode()))
            for i, spec in enumerate(problem.inputs)
        ]
        wide = [x.astype(np.promote_types(x.dtype, np.float32), copy=False) for x in self.plain]
        self.reference = problem.meaning(*wide)
        self.scale = [math.sqrt(_mean_square(x, self.bench.chunk)) for x in self.reference]
        self.wanted: dict[tuple[int, str], Array] = {}
        self.inputs: dict[tuple[int, str], Block] = {}
        self.outputs: dict[tuple[int, str], Block] = {}
        self.scratch = Block(self.bench, (0,), BYTES)

    def _normal(self, pool: Array, spec: Spec, seed: int) -> Array:
        """Return random numbers: those of the pool, again and again, from where the seed says."""
        array = self.bench.empty(spec.nbytes).view(spec.dtype).reshape(spec.shape)
        flat, done = array.reshape(-1), 0
        while done < flat.size:
            numbers = pool[(seed + done) % POOL :][: flat.size - done]
            flat[done : done + numbers.size] = numbers.astype(spec.dtype)
            done += numbers.size
        return array

    def operands(self, candidate: Candidate) -> tuple[list[Block], list[Block]]:
        """Return the blocks of a candidate's inputs and of its results."""
        n = len(self.plain)
        inputs = list(enumerate(candidate.layouts[:n]))
        results = list(enumerate(candidate.layouts[n:]))
        for key in inputs:
            if key not in self.inputs:
                lying = self.problem.arrange(self.plain[key[0]], key[1])
                self.inputs[key] = Block(self.bench, lying.shape, lying.dtype)
                self.inputs[key].write(lying)
        for key in results:
            if key not in self.outputs:
                lying = self.problem.arrange(self.reference[key[0]], key[1])
                self.wanted[key] = self.bench.stored(lying)
                dtype = self.problem.results[key[0]].dtype
                self.outputs[key] = Block(self.bench, lying.shape, dtype)
        return [self.inputs[key] for key in inputs], [self.outputs[key] for key in results]

    def reserve(self, nbytes: int) -> None:
        """Make the scratch at least as large as this."""
        if self.scratch.array.nbytes < nbytes:
            self.scratch = Block(self.bench, (nbytes,), BYTES)

    @property
    def lost(self) -> bool:
        """Whether the arrays no longer hold what was written to them."""
        return self.epoch != self.bench.epoch

    def refill(self) -> None:
        """Let the inputs hold numbers, whichever: of denormal ones candidates would be slow."""
        for block in self.inputs.values():
            block.array.fill(1)
        self.epoch = self.bench.epoch

    def restore(self) -> None:
        """Write the inputs again."""
        for (i, layout), block in self.inputs.items():
            block.write(self.problem.arrange(self.plain[i], layout))

    def wrong(self, candidate: Candidate) -> str:
        """Return what is wrong with the results that a candidate has left, or an empty string."""
        for i, layout in enumerate(candidate.layouts[len(self.plain) :]):
            got = self.outputs[i, layout].array
            error = _largest_difference(got, self.wanted[i, layout], self.bench.chunk)
            tolerance = max(TOLERANCE[candidate.precision], TOLERANCE[got.dtype.name])
            if math.isnan(error):
                return "wrong result: NaN, or not written"
            if error > tolerance * self.scale[i]:
                allowed = f"{tolerance:g} times {self.scale[i]:.3g} is allowed"
                return f"wrong result: off by {error:.3g}, {allowed}"
        return ""


@functools.cache
def _pool() -> Array:
    return np.random.default_rng(0).standard_normal(POOL, np.float32)


def _chunks(size: int, *arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield pieces of so many elements of contiguous arrays, in float32 or float64."""
    flat = [array.reshape(-1) for array in arrays]
    dtype = np.promote_types(flat[-1].dtype, np.float32)
    for start in range(0, flat[0].size, size):
        yield tuple(x[start : start + size].astype(dtype, copy=False) for x in flat)


def _mean_square(array: Array, chunk: int) -> float:
    total = sum(float(np.dot(x, x)) for (x,) in _chunks(chunk, array))
    return total / max(array.size, 1)


def _largest_difference(got: Array, wanted: Array, chunk: int) -> float:
    """Return the largest absolute difference of two arrays; NaN if there is one."""
    if not got.size:
        return 0.0
    return float(np.max([float(np.abs(x - y).max()) for x, y in _chunks(chunk, got, wanted)]))
