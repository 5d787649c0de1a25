"""A problem's random inputs, what has to come out, and memory that shows stray writes.

NumPy says what has to come out, and takes long for a convolution.  So where it can find out sums of
the results in less time, it checks the results of the candidate that a heuristic would choose by
these, and the others are compared with that one, element by element.  A result that is wrong
anywhere makes a sum wrong; then NumPy computes all.

Sums of a result's elements, each times a number, take less work than the result itself.  A
convolution is linear in its images, and in its weights.  So of sums of images, and of sums of
weights, come the same sums of its results.  Products of matrices have been checked in this way
since R. Freivalds, "Probabilistic machines can use less running time" (1977).  No number is less
than 1 in size: where one element is off, its sum is off by that at least.  All numbers differ, so
elements in each other's place show.  Several errors could only cancel each other by chance.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from minigraph.autotune.candidate import Candidate, Problem, Sums, Workbench
from minigraph.graph import Array, DType

GUARD = 4096  # bytes around each array that nobody may write to
FILL = 0xFF  # in guards and, before a check, in outputs and scratch: a NaN in every float type
POOL = 1_048_573  # random numbers; a prime, so that no stride of a kernel divides it

BYTES = np.dtype(np.uint8)
# How far a result may be from the reference, relative to the root mean square of the reference.
# The inputs are drawn from N(0, 1), so that a sum of n products has a root mean square of sqrt(n):
# its rounding error stays below 1e-3 of that in float32 up to a million products, and a single
# product that is missing does not.  The other precisions follow from their own rounding.
TOLERANCE = {
    "float64": 1e-9,
    "float32": 1e-3,
    "bf16x3": 1e-3,
    "tf32": 1e-2,
    "float16": 2e-2,
    "bfloat16": 0.1,
}
MOST = 64  # elements of an axis in a sum
# Elements in a sum, by dtype: what they were rounded by adds up to the root of their number.
TERMS = {"float64": 1024, "float32": 1024, "float16": 16, "bfloat16": 4}


class Block:
    """An array in memory of its own, between guards, once it is cleared or written."""

    def __init__(self, bench: Workbench, shape: tuple[int, ...], dtype: DType) -> None:
        nbytes = math.prod(shape) * dtype.itemsize
        # Whole words, for the checksum.
        self.bytes = bench.empty(GUARD + -(-nbytes // 8) * 8 + GUARD)
        self.array = self.view(shape, dtype)

    def view(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Return the beginning of the memory as an array, which is no larger."""
        nbytes = math.prod(shape) * dtype.itemsize
        return self.bytes[GUARD : GUARD + nbytes].view(dtype).reshape(shape)

    def clear(self, nbytes: int) -> None:
        """Make NaN of the first `nbytes` of the array, and a guard of what is next to them."""
        self.bytes[: GUARD + nbytes + GUARD].fill(FILL)

    def intact(self, nbytes: int) -> bool:
        """Return whether nobody has written next to the first `nbytes` of the array."""
        before, after = self.bytes[:GUARD], self.bytes[GUARD + nbytes :][:GUARD]
        return bool((before == FILL).all() and (after == FILL).all())

    def seal(self) -> None:
        """Set the guards around the array, from now on to change neither."""
        self.bytes[:GUARD].fill(FILL)
        self.bytes[GUARD + self.array.nbytes :].fill(FILL)
        self._sum = self._checksum()

    def changed(self) -> bool:
        """Return whether somebody has written to the array or its guards since `seal`."""
        return self._checksum() != self._sum

    def _checksum(self) -> int:
        """Return a sum of all bytes: it shows any write that changes one word."""
        return int(self.bytes.view(np.uint64).sum())


class Data:
    """What the candidates of a problem share.

    An input lies in one block in all layouts but its plain one: a candidate that is checked has it
    in its layout, one that is timed has the same numbers in any order.  So does a result, and the
    scratch is as large as the largest.
    """

    def __init__(self, problem: Problem, bench: Workbench) -> None:
        self.problem = problem
        self.bench = bench
        self._pool = bench.put(_pool())
        self._drawn = [Block(bench, spec.shape, spec.dtype) for spec in problem.inputs]
        self.plain = [block.array for block in self._drawn]
        self._draw()
        self.reference = checked(problem, bench, self.plain)
        self.scale = [root_mean_square(x, self.bench.chunk) for x in self.reference]
        self.inputs: dict[int, Block] = {}
        self._layouts: dict[int, Any] = {}  # of what is in the blocks of inputs
        self.outputs: dict[int, Block] = {}
        self.scratch = Block(self.bench, (0,), BYTES)

    def _draw(self) -> None:
        """Make inputs of the pool's numbers, again and again, from where a problem's seed says."""
        for i, block in enumerate(self._drawn):
            seed = zlib.crc32(f"{i} {self.problem.subject}".encode())
            flat, done = block.array.reshape(-1), 0
            while done < flat.size:
                numbers = self._pool[(seed + done) % POOL :][: flat.size - done]
                flat[done : done + numbers.size] = numbers.astype(flat.dtype)
                done += numbers.size
            block.seal()

    def operands(self, candidate: Candidate) -> tuple[list[Block], list[Array]]:
        """Return the blocks of a candidate's inputs, and arrays for its results."""
        inputs = enumerate(candidate.layouts[: len(self.plain)])
        return [self._arranged(i, layout) for i, layout in inputs], self._results(candidate)

    def _arranged(self, i: int, layout: Any) -> Block:
        plain = self.plain[i]
        first = _first(plain)
        if self.problem.arrange(first, layout) is first:
            return self._drawn[i]
        if i not in self._layouts or self._layouts[i] != layout:
            shape = self._shape(plain, layout)
            if i not in self.inputs or self.inputs[i].array.size != math.prod(shape):
                self.inputs[i] = Block(self.bench, shape, plain.dtype)
            self.inputs[i].array = self.inputs[i].view(shape, plain.dtype)
            self._arrange(i, layout)
        return self.inputs[i]

    def _arrange(self, i: int, layout: Any) -> None:
        for part, piece in self._pieces(self.plain[i], layout):
            self.inputs[i].array[part] = piece
        self.inputs[i].seal()
        self._layouts[i] = layout

    def _results(self, candidate: Candidate) -> list[Array]:
        arrays = []
        for i, layout in enumerate(candidate.layouts[len(self.plain) :]):
            shape, dtype = self._shape(self.reference[i], layout), self.problem.results[i].dtype
            if i not in self.outputs or self.outputs[i].array.size < math.prod(shape):
                self.outputs[i] = Block(self.bench, shape, dtype)
            arrays.append(self.outputs[i].view(shape, dtype))
        return arrays

    def _shape(self, array: Array, layout: Any) -> tuple[int, ...]:
        first = self.problem.arrange(_first(array), layout)
        return (len(array), *first.shape[1:]) if array.ndim > 2 else tuple(first.shape)

    def _pieces(self, array: Array, layout: Any) -> Iterator[tuple[Any, Array]]:
        """Yield parts of an array as they lie in a layout, each after its place.

        The whole of it, once more, may be larger than all that a function will take.
        """
        if array.ndim < 3:
            yield ..., self.problem.arrange(array, layout)
            return
        step = max(1, self.bench.chunk * len(array) // max(array.size, 1))
        for begin in range(0, len(array), step):
            part = slice(begin, begin + step)
            yield part, self.problem.arrange(array[part], layout)

    def reserve(self, nbytes: int) -> None:
        if self.scratch.array.nbytes < nbytes:
            self.scratch = Block(self.bench, (nbytes,), BYTES)

    def restore(self) -> None:
        self._draw()
        for i, layout in self._layouts.items():
            self._arrange(i, layout)

    def wrong(self, candidate: Candidate) -> str:
        """Return what is wrong with the results that a candidate has left, or an empty string."""
        layouts, chunk = candidate.layouts[len(self.plain) :], self.bench.chunk
        for i, (got, layout) in enumerate(zip(self._results(candidate), layouts, strict=True)):
            pieces = self._pieces(self.reference[i], layout)
            errors = [largest_difference(got[part], wanted, chunk) for part, wanted in pieces]
            error = float(np.max(errors, initial=0.0))
            tolerance = max(TOLERANCE[candidate.precision], TOLERANCE[got.dtype.name])
            if math.isnan(error):
                return "wrong result: NaN, or not written"
            if error > tolerance * self.scale[i]:
                allowed = f"{tolerance:g} times {self.scale[i]:.3g} is allowed"
                return f"wrong result: off by {error:.3g}, {allowed}"
        return ""


def _first(array: Array) -> Array:
    """Return the first of an array's pieces: of two axes a layout may exchange both."""
    return array[:1] if array.ndim > 2 else array


def warm(bench: Workbench, dtypes: Iterable[DType]) -> None:
    """Do once what checks do: CuPy compiles its kernels then, which no budget has to pay for.

    It compiles one for each dtype and number of axes that do not join.
    """
    with bench.current(), np.errstate(all="ignore"):
        ones = bench.put(np.ones((2,) * 4, np.float32))
        for dtype in dtypes:
            block = Block(bench, ones.shape, dtype)
            block.clear(block.array.nbytes)
            block.array[...] = ones.astype(dtype)
            block.seal()
            block.changed()
            block.intact(block.array.nbytes)
            root_mean_square(block.array, bench.chunk)
            largest_difference(block.array, block.array, bench.chunk)
            summed(block.array, 1, ones[0, 0, :1])
            wide = widened(block.array)
            # Layouts exchange axes, and a convolution adds up windows of which one is a product.
            for apart, view in zip(_turned(block.array), _turned(wide), strict=True):
                apart.reshape(-1)
                view[...] = view @ view + view.reshape(-1).reshape(view.shape)


def _turned(x: Array) -> tuple[Array, ...]:
    """Return views of an array with 4 axes of which 1, 2 and 3 do not join."""
    return x[..., 0], x[0, 0].T, x.swapaxes(0, 1)


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
    least = min(TOLERANCE[y.dtype.name] for y in problem.results)
    if candidate is None or TOLERANCE[candidate.precision] > max(TOLERANCE["float32"], least):
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


def _sums_agree(bench: Workbench, sums: Sums, y: Array, xs: Sequence[Array]) -> bool:
    """Return whether sums of a result are what they have to be by those of the inputs."""
    with np.errstate(all="ignore"):  # of what may be any numbers
        got, wanted = both_sums(sums, bench.put, y, xs)
        allowed = TOLERANCE[y.dtype.name] * root_mean_square(y, bench.chunk)
        return largest_difference(got, wanted, bench.chunk) <= allowed < math.inf


def widened(x: Array) -> Array:
    """Return an array as it is compared: in float32 or float64."""
    return x.astype(np.promote_types(x.dtype, np.float32), copy=False)


def _chunks(size: int, *arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield pieces of so many elements of contiguous arrays, widened."""
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, size):
        yield tuple(widened(x[start : start + size]) for x in flat)


def root_mean_square(array: Array, chunk: int) -> float:
    total = sum(float(np.dot(x, x)) for (x,) in _chunks(chunk, array))
    return math.sqrt(total / max(array.size, 1))


def largest_difference(got: Array, wanted: Array, chunk: int) -> float:
    """Return the largest absolute difference of two arrays; NaN if there is one."""
    if not got.size:
        return 0.0
    return float(np.max([float(np.abs(x - y).max()) for x, y in _chunks(chunk, got, wanted)]))


def both_sums(
    sums: Sums, put: Callable[[Array], Array], y: Array, xs: Sequence[Array]
) -> tuple[Array, Array]:
    """Return sums of a result, and what they have to be by the inputs.

    put  takes an array of NumPy to where the others are
    """
    left, xs = TERMS[y.dtype.name], [*xs]
    for axis in sums.axes:
        most = min(MOST, left)
        terms = next(n for n in range(most, 0, -1) if axis.length % n == 0)
        if axis.added and terms < axis.length:  # their part differs from sum to sum
            continue
        left //= terms
        # From 1 to 2 of either sign, and others for each axis: axes may be exchanged.
        random = np.random.default_rng((axis.length, axis.result))
        signs = random.choice(np.array([-1, 1], np.float32), axis.length)
        drawn = signs * (1 + random.random(axis.length, np.float32))
        numbers = put(drawn.reshape(-1, terms))
        y = summed(y, axis.result, numbers)
        for i, own in axis.inputs.items():
            xs[i] = summed(xs[i], own, numbers)
        for i in axis.added:
            xs[i] = xs[i] * numbers.sum()
    return y, sums.meaning(y.shape, *map(widened, xs))


def summed(x: Array, axis: int, numbers: Array) -> Array:
    """Return sums over runs of an axis: as many as rows of numbers, again and again."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    runs = x.reshape(math.prod(before), -1, *numbers.shape, math.prod(after))
    sums: Array = np.einsum("bgrti,rt->bgri", widened(runs), numbers)
    return sums.reshape(*before, -1, *after)
