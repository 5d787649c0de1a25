"""A problem's random inputs, what has to come out, and memory that shows stray writes."""

from __future__ import annotations

import functools
import math
import zlib

import numpy as np

from minigraph.autotune.block import Block
from minigraph.autotune.candidate import Candidate, Problem
from minigraph.autotune.closeness import TOLERANCE, largest_difference, root_mean_square
from minigraph.autotune.reference import checked
from minigraph.graph import Array, Spec

POOL = 1_048_573  # random numbers; a prime, so that no stride of a kernel divides it

BYTES = np.dtype(np.uint8)


class Data:
    """What the candidates of a problem share.

    Inputs and outputs are blocks by position and layout, made when a candidate first asks for
    them, and the scratch is as large as the largest.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.bench = problem.workbench
        pool = self.bench.put(_pool())
        self.plain = [
            self._normal(pool, spec, zlib.crc32(f"{i} {problem.subject}".encode()))
            for i, spec in enumerate(problem.inputs)
        ]
        self.reference = checked(problem, self.plain)
        self.scale = [root_mean_square(x, self.bench.chunk) for x in self.reference]
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


@functools.cache
def _pool() -> Array:
    return np.random.default_rng(0).standard_normal(POOL, np.float32)
