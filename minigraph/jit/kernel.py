"""A kernel for given shapes: a pattern with its axes, its constants and its argument block.

What the text leaves open stands in the argument block:

    threads, unit axes, loop axes, splits, whether to stream, slot and offset of the scratch memory,
    then the extents of the unit and the loop axes,
    then for each operand (inputs, then outputs): slot, offset, strides along the same axes,
    then the constants, so that a kernel does not depend on, say, the batch size
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
from minigraph.jit.fused import meaning
from minigraph.jit.loops import Ints, LoopNest, arrange
from minigraph.jit.pattern import ELEMENT, ROW, UNIT, KeptValue, KernelPattern, OutputStore, Value
from minigraph.jit.small_float import widen_reductions
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.reduction import Reduction
from minigraph.ops.slicing import Windowed

MAX_RANK = 16  # axes of a collapsed iteration space
STRETCH = 4096  # elements that are combined in the input's own type
PART = 32768  # elements of a unit for which threads wait for each other several times
SHARE = 64  # elements, pixels or rows, of which a split has a multiple
ROW_LENGTH = 16384  # elements of a row that a unit keeps, in the cache
MOST_ROWS = 4  # that a unit keeps
IN_FIRST_CACHE = 24 << 10  # bytes of narrow rows that a unit runs over more than once
ON_STACK = 56 << 10  # bytes of what is computed for the columns, or narrow rows, of a unit


@dataclass(frozen=True, eq=False)
class SpecialisedKernel:
    """A pattern with the shapes of one use of it."""

    pattern: KernelPattern
    nest: LoopNest
    constants: tuple[int, ...]  # as the argument block has them, with the bounds of windows
    inplace: tuple[Ints, ...]  # for each input the outputs that may overwrite it
    shifts: Ints  # how many bytes behind its first element each operand is where loops begin

    @property
    def units(self) -> int:
        """How many units threads share."""
        if self.pattern.form != "column" and not self.pattern.narrow:
            return self.nest.count
        width = self.nest.units[-1][0]
        return self.nest.count // width * -(-width // self.pattern.columns)

    def splits(self, threads: int) -> int:
        """Into how many parts to split the loops of a unit, so that all threads have work.

        Units that are split run over the loops together, so a unit is no longer in the cache when
        it runs over them again: many units are not.
        """
        if not self.pattern.reductions:
            return threads
        units, least = self.units, STRETCH if self.pattern.stages == 1 else PART
        if units >= 2 * threads or not self.pattern.divisible:
            return 1
        evenly = threads // math.gcd(units, threads)
        size = self.nest.count * self.nest.length * self.pattern.lanes // units
        return max(1, min(evenly, size // least, self.nest.length // SHARE))

    def scratch(self, threads: int) -> int:
        """Return the bytes that partial results need, or the rows that each thread keeps."""
        if self.pattern.rows and not self.pattern.narrow:
            room = -(-self.nest.length // SHARE) * SHARE
            each = sum(self.pattern.values[v].dtype.itemsize for v in self.pattern.rows)
            return min(threads, self.units) * room * each
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
        """Return the argument block; `places` gives slot and offset of each operand."""
        axes = (*self.nest.units, *self.nest.loops)
        splits = self.splits(threads)
        busy = min(threads, self.units * splits)
        head = [busy, len(self.nest.units), len(self.nest.loops), splits]
        # Rows that end at borders are no whole lines of the caches.
        streams = int(stream and not self.pattern.windows)
        values = [*head, streams, *scratch, *(n for n, _ in axes)]
        for k, (slot, offset) in enumerate(places):
            values += [slot, offset + self.shifts[k], *(strides[k] for _, strides in axes)]
        for k in range(len(places), self.pattern.walked):
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
    """Return the kernel of an op of inputs with these specs and strides, as `specialise` does.

    target  the strides of its only output, where that is not contiguous
    """
    domain = _domain_of(op, inputs)
    return _kernel(domain, *_nest(domain, strides, target, short))


@functools.lru_cache(4096)
def _domain_of(op: Op, inputs: tuple[Spec, ...]) -> Domain:
    return analyse(widen_reductions(meaning(op, inputs)))


def specialise(graph: Graph, strides: Sequence[Shape], short: int = 0) -> SpecialisedKernel:
    """Return the kernel for a subgraph whose inputs have these strides, in bytes.

    short  rows of up to so many elements are computed side by side

    Raises NotFusible where there is none.
    """
    domain = analyse(widen_reductions(graph))
    return _kernel(domain, *_nest(domain, strides, None, short))


def _nest(
    domain: Domain, strides: Sequence[Shape], target: Shape | None, short: int
) -> tuple[LoopNest, Ints]:
    graph = domain.graph
    # NumPy's strides of an empty array are 0, as of one that is broadcast along all its axes, which
    # a kernel reads before its loops.
    reads = [
        s if x.spec.size else x.spec.strides for x, s in zip(graph.inputs, strides, strict=True)
    ]
    steps = [*reads, *([target] if target is not None else (y.spec.strides for y in graph.outputs))]
    operands = [*graph.inputs, *graph.outputs]
    nest = arrange(domain, operands, steps, short)
    if len(nest.units) + len(nest.loops) > MAX_RANK:
        raise NotFusible(f"it has more than {MAX_RANK} axes")
    moved = zip((domain.starts[x] for x in operands), steps, strict=True)
    return nest, tuple(-sum(map(operator.mul, starts, s)) for starts, s in moved)


@functools.lru_cache(4096)  # most nests are the same for rows that may be short
def _kernel(domain: Domain, nest: LoopNest, shifts: Ints) -> SpecialisedKernel:
    """Return the kernel for a subgraph that runs over its domain in these loops."""
    graph = domain.graph
    operands = [*graph.inputs, *graph.outputs]
    made = _Values(domain, nest)
    stores = tuple(
        OutputStore(made.place[y], domain.reduces and domain.varies(y) == domain.kept)
        for y in graph.outputs
    )
    dtypes = tuple(x.dtype for x in operands)
    lanes, across = nest.lanes
    wide = tuple(map(bool, across))
    values = tuple(with_levels(made.values, nest))
    pattern = KernelPattern(
        nest.form,
        values,
        dtypes,
        nest.accesses,
        stores,
        lanes,
        wide[: len(dtypes)],
        nest.columns,
        windows=tuple(tuple(domain.bounded.index(d) for d, _, _ in w) for w in made.windows),
        counters=len(domain.bounded),
        narrow=nest.narrow,
    )
    _check_windows(pattern)
    kept = tuple(_worth_keeping(pattern, nest))
    held = {k.operand for k in kept}
    # As CUDA devices run it, where nothing is kept.
    last = {k: run for run in range(pattern.stages) for k in pattern.loaded(pattern.run(run))}
    inplace = tuple(
        _overwriting(pattern, k, last.get(k, 0), held, operands, nest)
        if not shifts[k] and k not in pattern.masked
        else ()
        for k in range(pattern.inputs)
    )
    pattern = replace(pattern, kept=kept)
    few = 4 if pattern.narrow else 16
    columns = min(pattern.columns, ON_STACK // (pattern.beside or 1) // few * few)
    if pattern.narrow and pattern.stages > 1:
        while columns > few and columns * _row_bytes(pattern, nest) > IN_FIRST_CACHE:
            columns //= 2
    pattern = _reading_back(replace(pattern, columns=columns))
    return SpecialisedKernel(pattern, nest, (*made.constants, *made.bounds()), inplace, shifts)


def _row_bytes(pattern: KernelPattern, nest: LoopNest) -> int:
    operands = zip(pattern.dtypes, pattern.accesses, strict=True)
    return nest.length * sum(dtype.itemsize for dtype, how in operands if how != "fixed")


def _check_windows(pattern: KernelPattern) -> None:
    if pattern.form == "column" and pattern.windows:
        raise NotFusible("a kernel down columns has no borders")
    fixed = any(pattern.accesses[k] == "fixed" for k in pattern.masked)
    if fixed or any(s.per_unit and pattern.values[s.value].level for s in pattern.stores):
        raise NotFusible("borders are those of elements, not of what is reduced")


def _overwriting(
    pattern: KernelPattern,
    k: int,
    last: int,
    held: set[int],
    operands: list[Node],
    nest: LoopNest,
) -> Ints:
    """Return the outputs that are written where input `k` was read, no sooner than it is.

    last  the last run over the loops that reads the input
    held  outputs that hold another value until they are known
    """
    return tuple(
        i
        for i, store in enumerate(pattern.stores)
        if pattern.inputs + i not in held
        and nest.alike(pattern.inputs + i, k)
        and operands[pattern.inputs + i].spec.nbytes == operands[k].spec.nbytes
        and (store.per_unit or pattern.values[store.value].stage >= last)
    )


class _Values:
    """The values of a kernel, and which of them is a node's."""

    def __init__(self, domain: Domain, nest: LoopNest) -> None:
        self.domain = domain
        self.nest = nest
        self.values: list[Value] = []
        self.constants: list[int] = []
        self.windows: dict[Window, int] = {}
        self.place: dict[Node, int] = {}
        operand = {x: k for k, x in enumerate(domain.graph.inputs)}
        for node in domain.graph:
            made: Value | None
            if node in operand:
                window = self._number(domain.window(node))
                made = Value(node.dtype, operand=operand[node], window=window)
            elif isinstance(node.op, Constant):
                if not is_number(node):
                    raise NotFusible("an array of constants is read from memory")
                made = self._constant(node.op.value)
            else:
                made = self._computed(node)
            if made is None:
                self.place[node] = self._moved(node)
            else:
                self.place[node] = self._add(made)

    def _add(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _number(self, window: Window) -> int:
        return self.windows.setdefault(window, len(self.windows)) if window else -1

    def bounds(self) -> Iterator[int]:
        """Yield the bounds of all windows, as counters count."""
        for window in self.windows:
            for loop, *ends in window:
                scale = self.nest.scales[self.domain.bounded.index(loop)]
                yield from (end * scale for end in ends)

    def _moved(self, node: Node) -> int:
        """Return the value of what moves elements: its input's, or a choice between several."""
        if not isinstance(node.op, Windowed):
            return self.place[node.inputs[0]]
        inputs, stage = [self.place[x] for x in node.inputs], self.domain.stages[node]
        windows = [*map(self._number, self.domain.windows(node))]
        if len(inputs) == 1:
            fill = np.array(node.op.around()).astype(node.dtype)
            given = self.values[inputs[0]]
            zero = not any(fill.tobytes())
            if zero and given.operand >= 0 and given.window == windows[0]:
                return inputs[0]
            # Of a choice between elements and a known number gcc makes branches.
            chosen = self._add(self._constant(fill, known=False))
        else:
            chosen = inputs.pop()
        for x, window in reversed([*zip(inputs, windows, strict=False)]):
            choice = Value(node.dtype, args=(x, chosen), window=window, stage=stage)
            chosen = x if window < 0 else self._add(choice)
        return chosen

    def _constant(self, number: Array, known: bool = True) -> Value:
        value = number.reshape(())[()]
        if known and (value in (0, 1, -1) or not np.isfinite(value)):
            return Value(number.dtype, literal=literal(value))
        word = np.zeros(8, np.uint8)
        word[: number.itemsize] = np.frombuffer(value.tobytes(), np.uint8)
        self.constants.append(int(word.view(np.int64)[0]))
        return Value(number.dtype, constant=len(self.constants) - 1)

    def _computed(self, node: Node) -> Value | None:
        """Return the value of a node; None where it is its input's."""
        op = node.op
        args = tuple(self.place[x] for x in node.inputs)
        if not isinstance(op, Reduction | Elementwise):
            return None
        if takes_index(op):
            long = tuple(n for n in node.shape if n != 1)
            moved = long != self.domain.extents or any(self.domain.starts[node])
            if self.nest.form != "map" or moved:
                raise NotFusible("random numbers are counted along one flat axis")
        return Value(node.dtype, op, args, stage=self.domain.stages[node])


def with_levels(values: Sequence[Value], nest: LoopNest) -> Iterator[Value]:
    """Yield values with the level at which a unit computes them."""
    moving: list[bool] = []  # which values change along the loops
    beside: list[bool] = []  # which values change along the innermost axis
    for value in values:
        if value.operand >= 0:
            moves, differs = nest.moves(value.operand), bool(nest.innermost[value.operand])
        elif takes_index(value.op):
            moves = differs = True
        elif value.reduces:
            moves, differs = False, nest.form == "column"
        else:
            moves, differs = (any(known[a] for a in value.args) for known in (moving, beside))
        moves |= value.window >= 0
        moving.append(moves)
        beside.append(differs)
        yield replace(value, level=UNIT if not moves else ELEMENT if differs else ROW)


def _worth_keeping(pattern: KernelPattern, nest: LoopNest) -> Iterator[KeptValue]:
    """Yield the costly values that more than one run over the loops needs and that have a place."""
    runs = [set(pattern.run(stage)) for stage in range(pattern.stages)]
    rows = MOST_ROWS if nest.form == "row" and nest.length <= ROW_LENGTH else 0
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
    """Return the kernel whose runs read what earlier ones have stored where that saves reads."""
    for k, store in enumerate(pattern.stores, pattern.inputs):
        stage = pattern.values[store.value].stage
        if store.per_unit or stage == pattern.stages - 1:
            continue
        back = replace(pattern, kept=(*pattern.kept, KeptValue(store.value, stage, k)))
        if _arrays_read(back) < _arrays_read(pattern):
            pattern = back
    return pattern


def _arrays_read(pattern: KernelPattern) -> int:
    read = 0
    for stage in range(pattern.stages):
        read += len({*pattern.moving(stage)}.difference(pattern.stored(stage)))
    return read


def check_speed(kernel: SpecialisedKernel) -> None:
    """Raise NotFusible, with the reason, if several kernels are faster than this one."""
    if kernel.pattern.stages > 1 and kernel.pattern.form == "column":
        raise NotFusible("it would have to run along the outer axis more than once")
