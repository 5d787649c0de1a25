"""A problem's random inputs, its expected results, and guarded memory that detects stray writes.

NumPy computes the expected results, but takes long for a convolution.  Checksums are faster: if the
checksums of the heuristic candidate's results agree with those predicted from the inputs, these
results are the expected results.  If they disagree, NumPy computes the results.

A checksum is a weighted sum of elements.  A convolution is linear in its images and in its weights,
so checksums of its operands predict those of its result with less work.  R. Freivalds,
"Probabilistic machines can use less running time" (1977), checks products of matrices this way.
The absolute value of each weight is at least 1, so an error of one element changes its checksum by
at least as much.  All weights differ, so exchanged elements change it, too.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from minigraph.autotune.candidate import Candidate, ChecksumAxes, Problem, Workbench
from minigraph.graph import Array, DType

GUARD_BYTES = 4096  # bytes before and after each array that no kernel may write to
FILL_BYTE = 0xFF  # fills guards and, before a check, outputs and scratch: NaN in every float type
POOL_SIZE = 1_048_573  # random numbers; a prime, so that no stride of a kernel divides it

UINT8 = np.dtype(np.uint8)
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
MAX_AXIS_TERMS = 64  # elements of one axis in a checksum
# Elements in a checksum, by dtype: rounding errors grow with the root of their number.
MAX_TERMS = {"float64": 1024, "float32": 1024, "float16": 16, "bfloat16": 4}


class GuardedArray:
    """An array between two guards; `clear` or `seal` sets the guards."""

    def __init__(self, bench: Workbench, shape: tuple[int, ...], dtype: DType) -> None:
        nbytes = math.prod(shape) * dtype.itemsize
        # The checksum reads whole words.
        self.bytes = bench.empty(GUARD_BYTES + -(-nbytes // 8) * 8 + GUARD_BYTES)
        self.array = self.view(shape, dtype)

    def view(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Return the beginning of the block as an array that is not larger than the block."""
        nbytes = math.prod(shape) * dtype.itemsize
        return self.bytes[GUARD_BYTES : GUARD_BYTES + nbytes].view(dtype).reshape(shape)

    def clear(self, nbytes: int) -> None:
        """Fill the first `nbytes` of the array with NaN, and set the guards next to them."""
        self.bytes[: GUARD_BYTES + nbytes + GUARD_BYTES].fill(FILL_BYTE)

    def guards_intact(self, nbytes: int) -> bool:
        """Return whether the guards next to the first `nbytes` of the array are unchanged."""
        before, after = self.bytes[:GUARD_BYTES], self.bytes[GUARD_BYTES + nbytes :][:GUARD_BYTES]
        return bool((before == FILL_BYTE).all() and (after == FILL_BYTE).all())

    def seal(self) -> None:
        """Set the guards, and note the checksum by which `is_changed` detects writes."""
        self.bytes[:GUARD_BYTES].fill(FILL_BYTE)
        self.bytes[GUARD_BYTES + self.array.nbytes :].fill(FILL_BYTE)
        self._sum = self._checksum()

    def is_changed(self) -> bool:
        """Return whether the array or its guards changed since `seal`."""
        return self._checksum() != self._sum

    def _checksum(self) -> int:
        return int(self.bytes.view(np.uint64).sum())


class TrialData:
    """The inputs, expected results, outputs and scratch that the candidates of a problem share.

    Each input has a block for its plain layout, and one for all other layouts.  A check brings the
    input to the candidate's layout; for timing, the order of the numbers does not matter.  Each
    result has one block for all layouts.
    """

    def __init__(self, problem: Problem, bench: Workbench) -> None:
        self.problem = problem
        self.bench = bench
        self._pool = bench.upload(_pool())
        self._plain_blocks = [GuardedArray(bench, x.shape, x.dtype) for x in problem.inputs]
        self.plain = [block.array for block in self._plain_blocks]
        self._draw()
        self.reference = reference_results(problem, bench, self.plain)
        self.scale = [root_mean_square(x, self.bench.chunk) for x in self.reference]
        self.inputs: dict[int, GuardedArray] = {}
        self._layouts: dict[int, Any] = {}  # the current layouts of the blocks of `inputs`
        self.outputs: dict[int, GuardedArray] = {}
        self.scratch = GuardedArray(self.bench, (0,), UINT8)

    def _draw(self) -> None:
        """Fill the inputs with numbers of the pool, from an offset that the subject determines."""
        for i, block in enumerate(self._plain_blocks):
            seed = zlib.crc32(f"{i} {self.problem.subject}".encode())
            flat, filled = block.array.reshape(-1), 0
            while filled < flat.size:
                numbers = self._pool[(seed + filled) % POOL_SIZE :][: flat.size - filled]
                flat[filled : filled + numbers.size] = numbers.astype(flat.dtype)
                filled += numbers.size
            block.seal()

    def operands(self, candidate: Candidate) -> tuple[list[GuardedArray], list[Array]]:
        """Return the blocks of a candidate's inputs and the arrays of its results."""
        layouts = enumerate(candidate.layouts[: len(self.plain)])
        inputs = [self._input_block(i, layout) for i, layout in layouts]
        return inputs, self._result_arrays(candidate)

    def _input_block(self, i: int, layout: Any) -> GuardedArray:
        plain = self.plain[i]
        first = _first_slice(plain)
        if self.problem.to_layout(first, layout) is first:
            return self._plain_blocks[i]
        if i not in self._layouts or self._layouts[i] != layout:
            shape = self._shape(plain, layout)
            if i not in self.inputs or self.inputs[i].array.size != math.prod(shape):
                self.inputs[i] = GuardedArray(self.bench, shape, plain.dtype)
            self.inputs[i].array = self.inputs[i].view(shape, plain.dtype)
            self._fill_input(i, layout)
        return self.inputs[i]

    def _fill_input(self, i: int, layout: Any) -> None:
        for part, piece in self._pieces(self.plain[i], layout):
            self.inputs[i].array[part] = piece
        self.inputs[i].seal()
        self._layouts[i] = layout

    def _result_arrays(self, candidate: Candidate) -> list[Array]:
        arrays = []
        for i, layout in enumerate(candidate.layouts[len(self.plain) :]):
            shape, dtype = self._shape(self.reference[i], layout), self.problem.results[i].dtype
            if i not in self.outputs or self.outputs[i].array.size < math.prod(shape):
                self.outputs[i] = GuardedArray(self.bench, shape, dtype)
            arrays.append(self.outputs[i].view(shape, dtype))
        return arrays

    def _shape(self, array: Array, layout: Any) -> tuple[int, ...]:
        first = self.problem.to_layout(_first_slice(array), layout)
        return (len(array), *first.shape[1:]) if array.ndim > 2 else tuple(first.shape)

    def _pieces(self, array: Array, layout: Any) -> Iterator[tuple[Any, Array]]:
        """Yield slices of an array, each with its elements in a layout.

        A copy of the whole array could need more memory than the compiled function.
        """
        if array.ndim < 3:
            yield ..., self.problem.to_layout(array, layout)
            return
        step = max(1, self.bench.chunk * len(array) // max(array.size, 1))
        for begin in range(0, len(array), step):
            part = slice(begin, begin + step)
            yield part, self.problem.to_layout(array[part], layout)

    def reserve(self, nbytes: int) -> None:
        if self.scratch.array.nbytes < nbytes:
            self.scratch = GuardedArray(self.bench, (nbytes,), UINT8)

    def restore(self) -> None:
        self._draw()
        for i, layout in self._layouts.items():
            self._fill_input(i, layout)

    def check_results(self, candidate: Candidate) -> str:
        """Return why a candidate's results are wrong; "" if they are right."""
        layouts, chunk = candidate.layouts[len(self.plain) :], self.bench.chunk
        results = self._result_arrays(candidate)
        for i, (actual, layout) in enumerate(zip(results, layouts, strict=True)):
            pieces = self._pieces(self.reference[i], layout)
            errors = (largest_difference(actual[part], piece, chunk) for part, piece in pieces)
            error = float(np.max([*errors], initial=0.0))
            tolerance = max(TOLERANCE[candidate.precision], TOLERANCE[actual.dtype.name])
            if math.isnan(error):
                return "wrong result: NaN, or not written"
            if error > tolerance * self.scale[i]:
                limit = f"{tolerance:g} times {self.scale[i]:.3g} is allowed"
                return f"wrong result: off by {error:.3g}, {limit}"
        return ""


def _first_slice(array: Array) -> Array:
    """Return the first slice along the leading axis; a layout may transpose a whole matrix."""
    return array[:1] if array.ndim > 2 else array


def warm_up(bench: Workbench, dtypes: Iterable[DType]) -> None:
    """Run the array operations of a check once, so that CuPy compiles them outside any budget.

    CuPy compiles a kernel for each dtype and number of axes that cannot be merged.
    """
    with bench.current(), np.errstate(all="ignore"):
        ones = bench.upload(np.ones((2,) * 4, np.float32))
        for dtype in dtypes:
            block = GuardedArray(bench, ones.shape, dtype)
            block.clear(block.array.nbytes)
            block.array[...] = ones.astype(dtype)
            block.seal()
            block.is_changed()
            block.guards_intact(block.array.nbytes)
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
    return np.random.default_rng(0).standard_normal(POOL_SIZE, np.float32)


# ---------------------------------------------------------------- expected results


def reference_results(problem: Problem, bench: Workbench, xs: Sequence[Array]) -> tuple[Array, ...]:
    """Return the heuristic candidate's results if their checksums agree, else NumPy's."""
    if problem.sums:
        results = _heuristic_results(problem, bench, xs)
        if results and _checksums_agree(bench, problem.sums, results[0], xs):
            return results
    return numpy_results(problem, xs)


def numpy_results(problem: Problem, xs: Sequence[Array]) -> tuple[Array, ...]:
    """Return the results that NumPy computes in float32 or float64."""
    return problem.meaning(*map(widened, xs))


def _heuristic_results(
    problem: Problem, bench: Workbench, xs: Sequence[Array]
) -> tuple[Array, ...] | None:
    """Return the results of the first candidate; None if it fails or their layout is not plain."""
    candidate = next(iter(problem.candidates()), None)
    tolerance = min(TOLERANCE[y.dtype.name] for y in problem.results)
    if candidate is None or TOLERANCE[candidate.precision] > max(TOLERANCE["float32"], tolerance):
        return None
    blocks = [GuardedArray(bench, spec.shape, spec.dtype) for spec in problem.results]
    results = tuple(block.array for block in blocks)
    for y, layout in zip(results, candidate.layouts[len(xs) :], strict=True):
        if problem.to_layout(y, layout).shape != y.shape:
            return None
    try:
        kernel = candidate.kernel
        blocks.append(GuardedArray(bench, (kernel.scratch,), UINT8))
        inputs = [problem.to_layout(x, to) for x, to in zip(xs, candidate.layouts, strict=False)]
        for block in blocks:
            block.clear(block.array.nbytes)
        bench.runner(kernel)(inputs, results, blocks[-1].array)
        intact = all(block.guards_intact(block.array.nbytes) for block in blocks)
    except Exception as error:  # from any library; the candidate's trial will report it
        bench.reraise_device_error(error, candidate.name)
        return None
    return results if intact else None


def _checksums_agree(bench: Workbench, axes: ChecksumAxes, y: Array, xs: Sequence[Array]) -> bool:
    """Return whether the checksums of `y` agree with those predicted from the inputs."""
    with np.errstate(all="ignore"):  # a wrong result may overflow
        actual, predicted = checksums(axes, bench.upload, y, xs)
        limit = TOLERANCE[y.dtype.name] * root_mean_square(y, bench.chunk)
        return largest_difference(actual, predicted, bench.chunk) <= limit < math.inf


def widened(x: Array) -> Array:
    """Return an array in the dtype of comparisons: float32, or float64 for float64."""
    return x.astype(np.promote_types(x.dtype, np.float32), copy=False)


def _chunks(size: int, *arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield slices of `size` elements of contiguous arrays, widened."""
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, size):
        yield tuple(widened(x[start : start + size]) for x in flat)


def root_mean_square(array: Array, chunk: int) -> float:
    total = sum(float(np.dot(x, x)) for (x,) in _chunks(chunk, array))
    return math.sqrt(total / max(array.size, 1))


def largest_difference(actual: Array, expected: Array, chunk: int) -> float:
    """Return the largest absolute difference of two arrays; NaN if a difference is NaN."""
    if not actual.size:
        return 0.0
    return float(np.max([float(np.abs(x - y).max()) for x, y in _chunks(chunk, actual, expected)]))


def checksums(
    axes: ChecksumAxes, upload: Callable[[Array], Array], y: Array, xs: Sequence[Array]
) -> tuple[Array, Array]:
    """Return the checksums of a result, and those predicted from the inputs.

    upload  copies a NumPy array to the device of the others
    """
    max_terms, xs = MAX_TERMS[y.dtype.name], [*xs]
    for axis in axes.axes:
        limit = min(MAX_AXIS_TERMS, max_terms)
        terms = next(n for n in range(limit, 0, -1) if axis.length % n == 0)
        # With several sums along the axis, each would need another weight for the reduced inputs.
        if axis.reduced_inputs and terms < axis.length:
            continue
        max_terms //= terms
        # Absolute values from 1 to 2.  Each axis has other weights, which detects exchanged axes.
        random = np.random.default_rng((axis.length, axis.result))
        signs = random.choice(np.array([-1, 1], np.float32), axis.length)
        values = signs * (1 + random.random(axis.length, np.float32))
        weights = upload(values.reshape(-1, terms))
        y = weighted_sums(y, axis.result, weights)
        for i, input_axis in axis.inputs.items():
            xs[i] = weighted_sums(xs[i], input_axis, weights)
        for i in axis.reduced_inputs:
            xs[i] = xs[i] * weights.sum()
    return y, axes.meaning(y.shape, *map(widened, xs))


def weighted_sums(x: Array, axis: int, weights: Array) -> Array:
    """Return the sums of runs along an axis, weighted by the rows of `weights` in turn."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    runs = x.reshape(math.prod(before), -1, *weights.shape, math.prod(after))
    sums: Array = np.einsum("bgrti,rt->bgri", widened(runs), weights)
    return sums.reshape(*before, -1, *after)
