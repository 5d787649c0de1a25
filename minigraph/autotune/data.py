"""A problem's random inputs, its expected results, and guarded memory that shows stray writes.

NumPy computes the expected results, but takes long for a convolution.  Checksums are faster: the
results of the heuristic's candidate are the expected ones if their checksums agree with those
predicted from the inputs.  If they disagree, NumPy computes the results after all.

A checksum is a weighted sum of elements.  A convolution is linear in its images and in its weights,
so checksums of its operands predict those of its result with less work.  R. Freivalds,
"Probabilistic machines can use less running time" (1977), checks products of matrices this way.
Each weight is at least 1 in size, so an error of one element changes its checksum by at least as
much.  All weights differ, so exchanged elements change it, too.
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

GUARD = 4096  # bytes before and after each array that no kernel may write to
FILL = 0xFF  # of guards and, before a check, of outputs and scratch: NaN in every float type
POOL = 1_048_573  # random numbers; a prime, so that no stride of a kernel divides it

BYTES = np.dtype(np.uint8)
# The largest error, relative to the root mean square of the expected result.  Inputs are drawn from
# N(0, 1), so a sum of n products has a root mean square of sqrt(n).  In float32 its rounding error
# is below 1e-3 of that for up to a million products; the error of a missing product is above it.
# The other tolerances follow from the rounding of each precision.
TOLERANCE = {
    "float64": 1e-9,
    "float32": 1e-3,
    "bf16x3": 1e-3,
    "tf32": 1e-2,
    "float16": 2e-2,
    "bfloat16": 0.1,
}
MOST = 64  # elements of one axis in a checksum
# Elements in a checksum, by dtype: rounding errors grow with the root of their number.
TERMS = {"float64": 1024, "float32": 1024, "float16": 16, "bfloat16": 4}


class Block:
    """An array between two guards; `clear` or `seal` sets the guards."""

    def __init__(self, bench: Workbench, shape: tuple[int, ...], dtype: DType) -> None:
        nbytes = math.prod(shape) * dtype.itemsize
        # The checksum reads whole words.
        self.bytes = bench.empty(GUARD + -(-nbytes // 8) * 8 + GUARD)
        self.array = self.view(shape, dtype)

    def view(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Return the beginning of the block as an array that is not larger than the block."""
        nbytes = math.prod(shape) * dtype.itemsize
        return self.bytes[GUARD : GUARD + nbytes].view(dtype).reshape(shape)

    def clear(self, nbytes: int) -> None:
        """Fill the first `nbytes` of the array with NaN, and set the guards next to them."""
        self.bytes[: GUARD + nbytes + GUARD].fill(FILL)

    def intact(self, nbytes: int) -> bool:
        """Return whether the guards next to the first `nbytes` of the array are unchanged."""
        before, after = self.bytes[:GUARD], self.bytes[GUARD + nbytes :][:GUARD]
        return bool((before == FILL).all() and (after == FILL).all())

    def seal(self) -> None:
        """Set the guards, and note the checksum by which `changed` detects writes."""
        self.bytes[:GUARD].fill(FILL)
        self.bytes[GUARD + self.array.nbytes :].fill(FILL)
        self._sum = self._checksum()

    def changed(self) -> bool:
        """Return whether the array or its guards changed since `seal`."""
        return self._checksum() != self._sum

    def _checksum(self) -> int:
        return int(self.bytes.view(np.uint64).sum())


class Data:
    """The inputs, expected results, outputs and scratch that the candidates of a problem share.

    One block holds an input in all layouts but the plain one: each check arranges it anew, and a
    timed candidate reads the same numbers in any order.  One block holds a result in all layouts.
    """

    def __init__(self, problem: Problem, bench: Workbench) -> None:
        self.problem = problem
        self.bench = bench
        self._pool = bench.put(_pool())
        self._drawn = [Block(bench, spec.shape, spec.dtype) for spec in problem.inputs]
        self.plain = [block.array for block in self._drawn]
        self._draw()
        self.reference = expected(problem, bench, self.plain)
        self.scale = [root_mean_square(x, self.bench.chunk) for x in self.reference]
        self.inputs: dict[int, Block] = {}
        self._layouts: dict[int, Any] = {}  # in which the blocks of `inputs` hold them now
        self.outputs: dict[int, Block] = {}
        self.scratch = Block(self.bench, (0,), BYTES)

    def _draw(self) -> None:
        """Fill the inputs with numbers of the pool, from an offset that the subject determines."""
        for i, block in enumerate(self._drawn):
            seed = zlib.crc32(f"{i} {self.problem.subject}".encode())
            flat, done = block.array.reshape(-1), 0
            while done < flat.size:
                numbers = self._pool[(seed + done) % POOL :][: flat.size - done]
                flat[done : done + numbers.size] = numbers.astype(flat.dtype)
                done += numbers.size
            block.seal()

    def operands(self, candidate: Candidate) -> tuple[list[Block], list[Array]]:
        """Return the blocks of a candidate's inputs and the arrays of its results."""
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
        """Yield slices of an array, each with its elements in a layout.

        A copy of the whole array could need more memory than the compiled function.
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
        """Return why a candidate's results are wrong; "" if they are right."""
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
    """Return the first slice along the leading axis; a layout may transpose a whole matrix."""
    return array[:1] if array.ndim > 2 else array


def warm(bench: Workbench, dtypes: Iterable[DType]) -> None:
    """Run the array operations of a check once, so that no budget pays for CuPy's compiling.

    CuPy compiles a kernel for each dtype and number of axes that cannot be merged.
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
            weighted_sums(block.array, 1, ones[0, 0, :1])
            wide = widened(block.array)
            # Layouts permute axes, and NumPy's convolution adds up products of windows.
            for view in _strided_views(block.array):
                view.reshape(-1)
            for view in _strided_views(wide):
                view[...] = view @ view + view.reshape(-1).reshape(view.shape)


def _strided_views(x: Array) -> tuple[Array, ...]:
    """Return views of a 4-d array of which 1, 2 and 3 axes cannot be merged."""
    return x[..., 0], x[0, 0].T, x.swapaxes(0, 1)


@functools.cache
def _pool() -> Array:
    return np.random.default_rng(0).standard_normal(POOL, np.float32)


# ---------------------------------------------------------------- expected results


def expected(problem: Problem, bench: Workbench, xs: Sequence[Array]) -> tuple[Array, ...]:
    """Return the heuristic candidate's results if their checksums agree, else NumPy's."""
    if problem.sums:
        results = _by_heuristic(problem, bench, xs)
        if results and _sums_agree(bench, problem.sums, results[0], xs):
            return results
    return by_numpy(problem, xs)


def by_numpy(problem: Problem, xs: Sequence[Array]) -> tuple[Array, ...]:
    """Return the results that NumPy computes in float32 or float64."""
    return problem.meaning(*map(widened, xs))


def _by_heuristic(
    problem: Problem, bench: Workbench, xs: Sequence[Array]
) -> tuple[Array, ...] | None:
    """Return the results of the first candidate; None if it fails or their layout is not plain."""
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
    except Exception as error:  # from any library; the candidate's trial will report it
        bench.examine(error, candidate.name)
        return None
    return results if intact else None


def _sums_agree(bench: Workbench, sums: Sums, y: Array, xs: Sequence[Array]) -> bool:
    """Return whether the checksums of `y` agree with those predicted from the inputs."""
    with np.errstate(all="ignore"):  # a wrong result may overflow
        got, wanted = checksums(sums, bench.put, y, xs)
        allowed = TOLERANCE[y.dtype.name] * root_mean_square(y, bench.chunk)
        return largest_difference(got, wanted, bench.chunk) <= allowed < math.inf


def widened(x: Array) -> Array:
    """Return an array in the dtype of comparisons: float32, or float64 if it has that."""
    return x.astype(np.promote_types(x.dtype, np.float32), copy=False)


def _chunks(size: int, *arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield slices of `size` elements of contiguous arrays, widened."""
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


def checksums(
    sums: Sums, put: Callable[[Array], Array], y: Array, xs: Sequence[Array]
) -> tuple[Array, Array]:
    """Return the checksums of a result, and those predicted from the inputs.

    put  copies a NumPy array to the device of the others
    """
    left, xs = TERMS[y.dtype.name], [*xs]
    for axis in sums.axes:
        most = min(MOST, left)
        terms = next(n for n in range(most, 0, -1) if axis.length % n == 0)
        if axis.added and terms < axis.length:  # each checksum would need another weight of them
            continue
        left //= terms
        # From 1 to 2 in size, of either sign; other weights for each axis show exchanged axes.
        random = np.random.default_rng((axis.length, axis.result))
        signs = random.choice(np.array([-1, 1], np.float32), axis.length)
        drawn = signs * (1 + random.random(axis.length, np.float32))
        weights = put(drawn.reshape(-1, terms))
        y = weighted_sums(y, axis.result, weights)
        for i, own in axis.inputs.items():
            xs[i] = weighted_sums(xs[i], own, weights)
        for i in axis.added:
            xs[i] = xs[i] * weights.sum()
    return y, sums.meaning(y.shape, *map(widened, xs))


def weighted_sums(x: Array, axis: int, weights: Array) -> Array:
    """Return the sums of runs along an axis, weighted by the rows of `weights` in turn."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    runs = x.reshape(math.prod(before), -1, *weights.shape, math.prod(after))
    sums: Array = np.einsum("bgrti,rt->bgri", widened(runs), weights)
    return sums.reshape(*before, -1, *after)
