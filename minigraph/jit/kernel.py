"""A kernel for certain shapes: a pattern with its axes, its constants and its argument block.

The argument block has all numbers that the text does not depend on:

    threads, unit axes, loop axes, splits, whether to stream, slot and offset of the scratch memory,
    then the extents of the unit axes and the loop axes,
    then for each operand (inputs, then outputs): slot, offset, strides along the same axes,
    then the constants, so that a kernel does not depend on the batch size, for example
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from minigraph.graph import Array, Constant, Graph, Node, Op, Shape, Spec
from minigraph.jit.domain import Domain, NotFusible, Window, analyse
from minigraph.jit.expression import is_number, literal, takes_index
from minigraph.jit.fused import Fused, meaning
from minigraph.jit.loops import Ints, LoopNest, arrange
from minigraph.jit.pattern import ELEMENT, ROW, UNIT, KeptValue, KernelPattern, OutputStore, Value
from minigraph.jit.small_float import widen_reductions
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.reduction import Reduction
from minigraph.ops.slicing import Windowed

MAX_RANK = 16  # axes of a collapsed iteration space
STRETCH = 4096  # elements that are accumulated in the input's dtype
MIN_SYNCHRONISED_SPLIT = 32768  # elements of a split if threads synchronise after each stage
SPLIT_MULTIPLE = 64  # the elements, pixels or rows of a split are a multiple of this
MAX_KEPT_ROW = 16384  # elements of a row that a unit keeps: it has to fit the cache
MAX_KEPT_ROWS = 4  # rows that a unit keeps
MAX_L1_BYTES = 24 << 10  # of the narrow rows of a unit with several stages
MAX_STACK_BYTES = 56 << 10  # of the results for the columns, or narrow rows, of a unit


@dataclass(frozen=True, eq=False)
class SpecialisedKernel:
    """A pattern with the shapes of one use of it.

    constants  words of the argument block: constants, then the bounds of windows
    inplace    outputs that may overwrite each input
    shifts     bytes from the first element of each operand to the start of the loops
    """

    pattern: KernelPattern
    nest: LoopNest
    constants: tuple[int, ...]
    inplace: tuple[Ints, ...]
    shifts: Ints

    @property
    def units(self) -> int:
        """The number of units that threads share."""
        if self.pattern.form != "column" and not self.pattern.narrow:
            return self.nest.count
        width = self.nest.units[-1][0]
        return self.nest.count // width * math.ceil(width / self.pattern.columns)

    def splits(self, threads: int) -> int:
        """The number of parts into which a unit's loops are split, so that all threads have work.

        All split units complete a stage before the next stage begins, and a unit has left the cache
        by then.  So with many units no unit is split.
        """
        if not self.pattern.reductions:
            return threads
        units = self.units
        if units >= 2 * threads or not self.pattern.divisible:
            return 1
        even_splits = threads // math.gcd(units, threads)
        size = self.nest.count * self.nest.length * self.pattern.lanes // units
        minimum = STRETCH if self.pattern.stages == 1 else MIN_SYNCHRONISED_SPLIT
        return max(1, min(even_splits, size // minimum, self.nest.length // SPLIT_MULTIPLE))

    def scratch(self, threads: int) -> int:
        """Return the bytes of scratch memory: for partial results, or for rows of each thread."""
        if self.pattern.rows and not self.pattern.narrow:
            length = math.ceil(self.nest.length / SPLIT_MULTIPLE) * SPLIT_MULTIPLE
            size = sum(self.pattern.values[v].dtype.itemsize for v in self.pattern.rows)
            return min(threads, self.units) * length * size
        results = len(self.pattern.reductions) * self.pattern.lanes
        splits = self.splits(threads)
        return 8 * self.nest.count * splits * results if splits > 1 else 0

    def block(
        self,
        threads: int,
        places: Sequence[tuple[int, int]],
        scratch: tuple[int, int],
        stream: bool,
    ) -> list[int]:
        """Return the argument block.

        places   slot and offset of each operand
        scratch  slot and offset of the scratch memory
        stream   whether outputs are too large for the caches
        """
        axes = (*self.nest.units, *self.nest.loops)
        splits = self.splits(threads)
        threads = min(threads, self.units * splits)
        head = [threads, len(self.nest.units), len(self.nest.loops), splits]
        # Rows that end at borders are not a multiple of a cache line.
        streams = int(stream and not self.pattern.windows)
        values = [*head, streams, *scratch, *(n for n, _ in axes)]
        for k, (slot, offset) in enumerate(places):
            values += [slot, offset + self.shifts[k], *(strides[k] for _, strides in axes)]
        for k in range(len(places), self.pattern.records):
            values += [0, 0, *(strides[k] for _, strides in axes)]
        return [*values, *self.constants]


@functools.lru_cache(4096)
def kernel_of(
    op: Op,
    inputs: tuple[Spec, ...],
    strides: tuple[Shape, ...],
    target: Shape | None = None,
    short_row: int = 0,
) -> SpecialisedKernel:
    """Return the kernel of an op for inputs with these specs and strides, in bytes.

    target     strides of the only output if it is not contiguous
    short_row  largest number of elements of rows that are computed side by side

    Raises NotFusible if one kernel cannot compute the op.
    """
    domain = _domain_of(op, inputs)
    graph = domain.graph
    # NumPy's strides of an empty array are 0, like those of a broadcast scalar, which a kernel
    # reads before its loops.
    reads = [
        s if x.spec.size else x.spec.strides for x, s in zip(graph.inputs, strides, strict=True)
    ]
    steps = [*reads, *([target] if target is not None else (y.spec.strides for y in graph.outputs))]
    operands = [*graph.inputs, *graph.outputs]
    nest = arrange(domain, operands, steps, short_row)
    if len(nest.units) + len(nest.loops) > MAX_RANK:
        raise NotFusible(f"it has more than {MAX_RANK} axes")
    pairs = zip((domain.starts[x] for x in operands), steps, strict=True)
    return _kernel(domain, nest, tuple(-sum(map(operator.mul, *pair)) for pair in pairs))


@functools.lru_cache(4096)
def _domain_of(op: Op, inputs: tuple[Spec, ...]) -> Domain:
    return analyse(widen_reductions(meaning(op, inputs)))


def specialise(graph: Graph, strides: Sequence[Shape], short_row: int = 0) -> SpecialisedKernel:
    """Return the kernel for a graph whose inputs have these strides: see `kernel_of`."""
    specs = tuple(x.spec for x in graph.inputs)
    return kernel_of(Fused(graph), specs, tuple(strides), short_row=short_row)


@functools.lru_cache(4096)  # different values of `short_row` often give the same nest
def _kernel(domain: Domain, nest: LoopNest, shifts: Ints) -> SpecialisedKernel:
    """Return the kernel that computes a domain with a loop nest."""
    graph = domain.graph
    operands = [*graph.inputs, *graph.outputs]
    values = _Values(domain, nest)
    stores = tuple(
        OutputStore(values.index[y], domain.reduces and domain.varies(y) == domain.kept)
        for y in graph.outputs
    )
    dtypes = tuple(x.dtype for x in operands)
    lanes, across = nest.lanes
    pattern = KernelPattern(
        nest.form,
        tuple(with_levels(values.values, nest)),
        dtypes,
        nest.accesses,
        stores,
        lanes,
        tuple(map(bool, across[: len(dtypes)])),
        nest.columns,
        windows=tuple(tuple(domain.bounded.index(d) for d, _, _ in w) for w in values.windows),
        counters=len(domain.bounded),
        narrow=nest.narrow,
    )
    if pattern.form == "column" and pattern.windows:
        raise NotFusible("a kernel down columns has no borders")
    fixed = any(pattern.accesses[k] == "fixed" for k in pattern.operand_windows)
    if fixed or any(s.per_unit and pattern.values[s.value].level for s in pattern.stores):
        raise NotFusible("only elements may have borders, not the results of reductions")
    kept = tuple(_kept_values(pattern, nest))
    inplace = _inplace_outputs(pattern, nest, shifts, operands, {k.operand for k in kept})
    pattern = replace(pattern, kept=kept)
    step = 4 if pattern.narrow else 16
    columns = min(pattern.columns, MAX_STACK_BYTES // (pattern.column_bytes or 1) // step * step)
    if pattern.narrow and pattern.stages > 1:
        accesses = zip(dtypes, pattern.accesses, strict=True)
        row = nest.length * sum(dtype.itemsize for dtype, access in accesses if access != "fixed")
        while columns > step and columns * row > MAX_L1_BYTES:
            columns //= 2
    pattern = _reading_back(replace(pattern, columns=columns))
    return SpecialisedKernel(pattern, nest, (*values.constants, *values.bounds()), inplace, shifts)


def _inplace_outputs(
    pattern: KernelPattern, nest: LoopNest, shifts: Ints, operands: list[Node], kept: set[int]
) -> tuple[Ints, ...]:
    """Return the outputs that may overwrite each input.

    The output is written at the addresses of the input, and not before the last read of the input.

    kept  outputs that hold another value before their final one
    """
    # As if no values were kept, because CUDA kernels keep none.
    last_run = {k: run for run in range(pattern.stages) for k in pattern.loaded(pattern.run(run))}
    return tuple(
        tuple(
            i
            for i, store in enumerate(pattern.stores)
            if not shifts[k]
            and k not in pattern.operand_windows
            and pattern.inputs + i not in kept
            and nest.same_strides(pattern.inputs + i, k)
            and operands[pattern.inputs + i].spec.nbytes == operands[k].spec.nbytes
            and (store.per_unit or pattern.values[store.value].stage >= last_run.get(k, 0))
        )
        for k in range(pattern.inputs)
    )


class _Values:
    """The values of a kernel, and the index of each node's value."""

    def __init__(self, domain: Domain, nest: LoopNest) -> None:
        self.domain = domain
        self.nest = nest
        self.values: list[Value] = []
        self.constants: list[int] = []
        self.windows: dict[Window, int] = {}
        self.index: dict[Node, int] = {}
        operand = {x: k for k, x in enumerate(domain.graph.inputs)}
        for node in domain.graph:
            if node in operand:
                window = self._window_index(domain.window(node))
                value = Value(node.dtype, operand=operand[node], window=window)
                self.index[node] = self._add(value)
            elif isinstance(node.op, Constant):
                if not is_number(node):
                    raise NotFusible("an array of constants is read from memory")
                self.index[node] = self._add(self._constant(node.op.value))
            elif isinstance(node.op, Reduction | Elementwise):
                self.index[node] = self._add(self._computed(node))
            else:
                self.index[node] = self._movement(node)

    def _add(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _window_index(self, window: Window) -> int:
        return self.windows.setdefault(window, len(self.windows)) if window else -1

    def bounds(self) -> Iterator[int]:
        """Yield the bounds of all windows, in the units of their counters."""
        for window in self.windows:
            for loop, *bounds in window:
                scale = self.nest.scales[self.domain.bounded.index(loop)]
                yield from (bound * scale for bound in bounds)

    def _movement(self, node: Node) -> int:
        """Return the value of an op that moves elements: that of its input, or a choice."""
        if not isinstance(node.op, Windowed):
            return self.index[node.inputs[0]]
        inputs, stage = [self.index[x] for x in node.inputs], self.domain.stages[node]
        windows = [*map(self._window_index, self.domain.windows(node))]
        if len(inputs) == 1:
            fill = np.array(node.op.value).astype(node.dtype)
            x = self.values[inputs[0]]
            zero = not any(fill.tobytes())
            if zero and x.operand >= 0 and x.window == windows[0]:
                return inputs[0]
            # gcc compiles a choice between an element and a literal to branches.
            result = self._add(self._constant(fill, as_literal=False))
        else:
            result = inputs.pop()
        for v, window in reversed([*zip(inputs, windows, strict=False)]):
            choice = Value(node.dtype, args=(v, result), window=window, stage=stage)
            result = v if window < 0 else self._add(choice)
        return result

    def _constant(self, number: Array, as_literal: bool = True) -> Value:
        value = number.reshape(())[()]
        if as_literal and (value in (0, 1, -1) or not np.isfinite(value)):
            return Value(number.dtype, literal=literal(value))
        word = np.zeros(8, np.uint8)
        word[: number.itemsize] = np.frombuffer(value.tobytes(), np.uint8)
        self.constants.append(int(word.view(np.int64)[0]))
        return Value(number.dtype, constant=len(self.constants) - 1)

    def _computed(self, node: Node) -> Value:
        if takes_index(node.op):
            extents = tuple(n for n in node.shape if n != 1)
            is_shifted = extents != self.domain.extents or any(self.domain.starts[node])
            if self.nest.form != "map" or is_shifted:
                raise NotFusible("random numbers are counted along one flat axis")
        args = tuple(self.index[x] for x in node.inputs)
        return Value(node.dtype, node.op, args, stage=self.domain.stages[node])


def with_levels(values: Sequence[Value], nest: LoopNest) -> Iterator[Value]:
    """Yield values with the level at which a unit computes them."""
    moving: list[bool] = []  # whether each value varies along the loops
    differing: list[bool] = []  # whether each value varies along the innermost axis
    for value in values:
        if value.operand >= 0:
            moves, differs = nest.moves(value.operand), bool(nest.innermost[value.operand])
        elif takes_index(value.op):
            moves = differs = True
        elif value.reduces:
            moves, differs = False, nest.form == "column"
        else:
            moves, differs = (any(flags[a] for a in value.args) for flags in (moving, differing))
        moves |= value.window >= 0
        moving.append(moves)
        differing.append(differs)
        yield replace(value, level=UNIT if not moves else ELEMENT if differs else ROW)


def _kept_values(pattern: KernelPattern, nest: LoopNest) -> Iterator[KeptValue]:
    """Yield the costly values that several runs over the loops need, as far as memory suffices."""
    runs = [set(pattern.run(stage)) for stage in range(pattern.stages)]
    rows = MAX_KEPT_ROWS if nest.form == "row" and nest.length <= MAX_KEPT_ROW else 0
    outputs = [
        k
        for k, store in enumerate(pattern.stores, pattern.inputs)
        if not store.per_unit and pattern.values[store.value].stage == pattern.stages - 1
    ]
    for v, value in enumerate(pattern.values):
        stages = [stage for stage, run in enumerate(runs) if v in run]
        costly = isinstance(value.op, Elementwise) and value.op.costly
        if value.level < ELEMENT or not costly or len(stages) < 2:
            continue
        same_dtype = [k for k in outputs if pattern.dtypes[k] == value.dtype]
        if rows:
            rows -= 1
            yield KeptValue(v, stages[0])
        elif same_dtype:
            outputs.remove(same_dtype[0])
            yield KeptValue(v, stages[0], same_dtype[0])


def _reading_back(pattern: KernelPattern) -> KernelPattern:
    """Let runs read the outputs of earlier runs if that saves reads of other arrays."""
    for k, store in enumerate(pattern.stores, pattern.inputs):
        stage = pattern.values[store.value].stage
        if store.per_unit or stage == pattern.stages - 1:
            continue
        candidate = replace(pattern, kept=(*pattern.kept, KeptValue(store.value, stage, k)))
        if _arrays_read(candidate) < _arrays_read(pattern):
            pattern = candidate
    return pattern


def _arrays_read(pattern: KernelPattern) -> int:
    stages = range(pattern.stages)
    return sum(len({*pattern.moving(s)}.difference(pattern.stored(s))) for s in stages)


def check_speed(kernel: SpecialisedKernel) -> None:
    """Raise NotFusible if several kernels are faster than this one."""
    if kernel.pattern.stages > 1 and kernel.pattern.form == "column":
        raise NotFusible("it would run along the outer axis more than once")
