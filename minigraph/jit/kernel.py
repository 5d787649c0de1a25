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
    inplace    for each input the outputs that may overwrite it
    shifts     for each operand the bytes from its first element to the start of the loops
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
        """The number of parts of a unit's loops, so that all threads have work.

        All split units complete a stage before the next one begins, so a unit has left the cache by
        then: with many units there is one part.
        """
        if not self.pattern.reductions:
            return threads
        units, least = self.units, STRETCH if self.pattern.stages == 1 else MIN_SYNCHRONISED_SPLIT
        if units >= 2 * threads or not self.pattern.divisible:
            return 1
        evenly = threads // math.gcd(units, threads)
        size = self.nest.count * self.nest.length * self.pattern.lanes // units
        return max(1, min(evenly, size // least, self.nest.length // SPLIT_MULTIPLE))

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
        busy = min(threads, self.units * splits)
        head = [busy, len(self.nest.units), len(self.nest.loops), splits]
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
    short: int = 0,
) -> SpecialisedKernel:
    """Return the kernel of an op for inputs with these specs and strides, in bytes.

    target  strides of the only output if it is not contiguous
    short   rows of up to this many elements are computed side by side

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
    nest = arrange(domain, operands, steps, short)
    if len(nest.units) + len(nest.loops) > MAX_RANK:
        raise NotFusible(f"it has more than {MAX_RANK} axes")
    moved = zip((domain.starts[x] for x in operands), steps, strict=True)
    return _kernel(domain, nest, tuple(-sum(map(operator.mul, starts, s)) for starts, s in moved))


@functools.lru_cache(4096)
def _domain_of(op: Op, inputs: tuple[Spec, ...]) -> Domain:
    return analyse(widen_reductions(meaning(op, inputs)))


def specialise(graph: Graph, strides: Sequence[Shape], short: int = 0) -> SpecialisedKernel:
    """Return the kernel for a graph whose inputs have these strides: see `kernel_of`."""
    return kernel_of(Fused(graph), tuple(x.spec for x in graph.inputs), tuple(strides), short=short)


@functools.lru_cache(4096)  # different values of `short` often give the same nest
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
        raise NotFusible("borders are those of elements, not of what is reduced")
    kept = tuple(_worth_keeping(pattern, nest))
    inplace = _overwriting(pattern, nest, shifts, operands, {k.operand for k in kept})
    pattern = replace(pattern, kept=kept)
    few = 4 if pattern.narrow else 16
    columns = min(pattern.columns, MAX_STACK_BYTES // (pattern.column_bytes or 1) // few * few)
    if pattern.narrow and pattern.stages > 1:
        accesses = zip(dtypes, pattern.accesses, strict=True)
        row = nest.length * sum(dtype.itemsize for dtype, how in accesses if how != "fixed")
        while columns > few and columns * row > MAX_L1_BYTES:
            columns //= 2
    pattern = _reading_back(replace(pattern, columns=columns))
    return SpecialisedKernel(pattern, nest, (*values.constants, *values.bounds()), inplace, shifts)


def _overwriting(
    pattern: KernelPattern, nest: LoopNest, shifts: Ints, operands: list[Node], held: set[int]
) -> tuple[Ints, ...]:
    """Return for each input the outputs that may overwrite it.

    An output is written at the same addresses as the input, and not before the input's last read.

    held  outputs that hold another value before their final one
    """
    # Without kept values, which CUDA kernels do not have.
    last = {k: run for run in range(pattern.stages) for k in pattern.loaded(pattern.run(run))}
    return tuple(
        tuple(
            i
            for i, store in enumerate(pattern.stores)
            if not shifts[k]
            and k not in pattern.operand_windows
            and pattern.inputs + i not in held
            and nest.same_strides(pattern.inputs + i, k)
            and operands[pattern.inputs + i].spec.nbytes == operands[k].spec.nbytes
            and (store.per_unit or pattern.values[store.value].stage >= last.get(k, 0))
        )
        for k in range(pattern.inputs)
    )


class _Values:
    """The values of a kernel; `index` has the index of each node's value."""

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
                window = self._number(domain.window(node))
                value = Value(node.dtype, operand=operand[node], window=window)
                self.index[node] = self._add(value)
            elif isinstance(node.op, Constant):
                if not is_number(node):
                    raise NotFusible("an array of constants is read from memory")
                self.index[node] = self._add(self._constant(node.op.value))
            elif isinstance(node.op, Reduction | Elementwise):
                self.index[node] = self._add(self._computed(node))
            else:
                self.index[node] = self._moved(node)

    def _add(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _number(self, window: Window) -> int:
        return self.windows.setdefault(window, len(self.windows)) if window else -1

    def bounds(self) -> Iterator[int]:
        """Yield the bounds of all windows, in the units of their counters."""
        for window in self.windows:
            for loop, *ends in window:
                scale = self.nest.scales[self.domain.bounded.index(loop)]
                yield from (end * scale for end in ends)

    def _moved(self, node: Node) -> int:
        """Return the value of an op that moves elements: its input's, or a choice of several."""
        if not isinstance(node.op, Windowed):
            return self.index[node.inputs[0]]
        inputs, stage = [self.index[x] for x in node.inputs], self.domain.stages[node]
        windows = [*map(self._number, self.domain.windows(node))]
        if len(inputs) == 1:
            fill = np.array(node.op.border_value()).astype(node.dtype)
            x = self.values[inputs[0]]
            zero = not any(fill.tobytes())
            if zero and x.operand >= 0 and x.window == windows[0]:
                return inputs[0]
            # gcc compiles a choice between an element and a literal to branches.
            chosen = self._add(self._constant(fill, as_literal=False))
        else:
            chosen = inputs.pop()
        for v, window in reversed([*zip(inputs, windows, strict=False)]):
            choice = Value(node.dtype, args=(v, chosen), window=window, stage=stage)
            chosen = v if window < 0 else self._add(choice)
        return chosen

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
            long = tuple(n for n in node.shape if n != 1)
            moved = long != self.domain.extents or any(self.domain.starts[node])
            if self.nest.form != "map" or moved:
                raise NotFusible("random numbers are counted along one flat axis")
        args = tuple(self.index[x] for x in node.inputs)
        return Value(node.dtype, node.op, args, stage=self.domain.stages[node])


def with_levels(values: Sequence[Value], nest: LoopNest) -> Iterator[Value]:
    """Yield values with the level at which a unit computes them."""
    moving: list[bool] = []  # for each value, whether it varies along the loops
    differing: list[bool] = []  # for each value, whether it varies along the innermost axis
    for value in values:
        if value.operand >= 0:
            moves, differs = nest.moves(value.operand), bool(nest.innermost[value.operand])
        elif takes_index(value.op):
            moves = differs = True
        elif value.reduces:
            moves, differs = False, nest.form == "column"
        else:
            moves, differs = (any(known[a] for a in value.args) for known in (moving, differing))
        moves |= value.window >= 0
        moving.append(moves)
        differing.append(differs)
        yield replace(value, level=UNIT if not moves else ELEMENT if differs else ROW)


def _worth_keeping(pattern: KernelPattern, nest: LoopNest) -> Iterator[KeptValue]:
    """Yield the costly values that several runs over the loops need and for which there is room."""
    runs = [set(pattern.run(stage)) for stage in range(pattern.stages)]
    rows = MAX_KEPT_ROWS if nest.form == "row" and nest.length <= MAX_KEPT_ROW else 0
    outputs = [
        k
        for k, store in enumerate(pattern.stores, pattern.inputs)
        if not store.per_unit and pattern.values[store.value].stage == pattern.stages - 1
    ]
    for v, value in enumerate(pattern.values):
        needed = [stage for stage, run in enumerate(runs) if v in run]
        costly = isinstance(value.op, Elementwise) and value.op.costly
        if value.level < ELEMENT or not costly or len(needed) < 2:
            continue
        alike = [k for k in outputs if pattern.dtypes[k] == value.dtype]
        if rows:
            rows -= 1
            yield KeptValue(v, needed[0])
        elif alike:
            outputs.remove(alike[0])
            yield KeptValue(v, needed[0], alike[0])


def _reading_back(pattern: KernelPattern) -> KernelPattern:
    """Let runs read outputs that earlier runs have stored, if that saves reads of other arrays."""
    for k, store in enumerate(pattern.stores, pattern.inputs):
        stage = pattern.values[store.value].stage
        if store.per_unit or stage == pattern.stages - 1:
            continue
        back = replace(pattern, kept=(*pattern.kept, KeptValue(store.value, stage, k)))
        if _arrays_read(back) < _arrays_read(pattern):
            pattern = back
    return pattern


def _arrays_read(pattern: KernelPattern) -> int:
    stages = range(pattern.stages)
    return sum(len({*pattern.moving(s)}.difference(pattern.stored(s))) for s in stages)


def check_speed(kernel: SpecialisedKernel) -> None:
    """Raise NotFusible if several kernels are faster than this one."""
    if kernel.pattern.stages > 1 and kernel.pattern.form == "column":
        raise NotFusible("it would have to run along the outer axis more than once")
