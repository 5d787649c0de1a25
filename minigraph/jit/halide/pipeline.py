"""The pipeline of a kernel, its schedule, and its machine code.

Values are inlined where they are reduced or stored, except for costly values with several uses.
Softmax, exp(x - max(x)) / sum, for example:

    for each unit:                     units are divided among threads
      for each stretch of x:
        stretch = max(stretch, x)      in vectors, lane by lane
        total = max(total, stretch)
      total = max of its lanes
      row = exp(x - total)             in vectors
      ...                              the sum of the row, like the maximum
      y = row / sum                    in vectors

If the innermost axis is kept, neighbouring elements are reduced together, without lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import halide as hl
from pycparser.c_parser import ParseError

from minigraph import options as settings
from minigraph.graph import BOOL
from minigraph.jit.c.body import is_costly
from minigraph.jit.expression import c_type, takes_index
from minigraph.jit.halide.c_text import CText
from minigraph.jit.halide.source import FUNCTIONS, Accumulator, HalideSource, accumulators_of, c_of
from minigraph.jit.halide.values import DOUBLE, INT, TYPES, ZERO, constant, convert
from minigraph.jit.pattern import UNIT, Value
from minigraph.ops.elementwise import Elementwise

LANES = 64  # lanes of a stretch along the innermost axis
STEPS = 64  # elements that each lane, or column, accumulates in their type before a total
UNROLLED = 4  # rows of a step down columns in kernels of few values
FEW_VALUES = 8
AHEAD = 256  # elements that are computed before outputs overwrite inputs
STACK = hl.MemoryType.Stack
GUARD = hl.TailStrategy.GuardWithIf  # computes no element twice: an output may overwrite an input
FEATURES = ("no_runtime", "no_asserts", "no_bounds_query")
FIXED = ("fixed", "same")  # accesses that do not move along the innermost axis
Exprs = list[Any]


def compile_kernel(
    source: HalideSource, folder: Path, without: Sequence[str], debug: bool
) -> bytes:
    """Return the object file of a kernel's function; raise RuntimeError if Halide fails.

    folder   for the object file, and Halide's lowered code
    without  prefixes of the instruction sets that the kernel must not use
    debug    whether to print the schedule and the lowered code
    """
    host = str(hl.get_host_target()).split("-")
    features = [name for name in host if not name.startswith(tuple(without))]
    target = hl.Target("-".join((*features, *FEATURES)))
    path, text = (folder / f"{source.name}.{end}" for end in ("o", "stmt"))
    try:
        kernel = KernelPipeline(source, target.natural_vector_size(hl.UInt(8)))
        kernel.pipeline.compile_to_object(str(path), kernel.arguments, source.name, target)
    except (hl.HalideError, ParseError) as error:
        raise RuntimeError(str(error)) from None
    if debug or settings.jit_keep_interm():
        form = hl.StmtOutputFormat.Text
        kernel.pipeline.compile_to_lowered_stmt(str(text), kernel.arguments, form, target)
    if debug:
        kernel.pipeline.print_loop_nest()
        print(source.kernel, text.read_text(), sep="\n", flush=True)
    return path.read_bytes()


def _define(f: hl.Func, axes: Sequence[Any], entries: Exprs) -> hl.Func:
    f[tuple(axes)] = entries[0] if len(entries) == 1 else hl.Tuple(entries)
    return f


def _entries(f: hl.Func, axes: Sequence[Any]) -> Exprs:
    entries = f[tuple(axes)]
    count = f.outputs()
    return [hl.Expr(entries)] if count == 1 else [hl.Expr(entries[i]) for i in range(count)]


def _begin(f: hl.Func, axes: Sequence[Any], parts: Sequence[Accumulator]) -> None:
    _define(f, axes, [CText().value(identity, {}, TYPES[t]) for _, t, identity, _ in parts])


def _combine(f: hl.Func, axes: Sequence[Any], parts: Sequence[Accumulator], xs: Exprs) -> None:
    names = {f"new{n}": x for n, x in enumerate(xs)}
    names |= {f"old{n}": x for n, x in enumerate(_entries(f, axes))}
    _define(f, axes, [CText().value(text, names, TYPES[t]) for _, t, _, text in parts])


class KernelPipeline:
    """The pipeline of a kernel.

    vector  bytes of a register
    """

    def __init__(self, source: HalideSource, vector: int) -> None:
        self.source = source
        self.pattern = pattern = source.pattern
        self.functions = "\n".join((FUNCTIONS, *source.support))
        self.units = [hl.Var(f"u{i}") for i in range(source.units)]
        self.loops = [hl.Var(f"l{i}") for i in range(source.loops)]
        in_vectors = [v.dtype.itemsize for v in pattern.values if v.level > UNIT or source.columns]
        self.vector = vector // max([4, *in_vectors])
        self.columns = pattern.columns
        # Elements that one step of a run over the loops reduces side by side.
        self.side = 1 if source.columns else self.vector if pattern.narrow else LANES
        if pattern.form == "lane":
            self.columns, self.vector = pattern.lanes, min(self.vector, pattern.lanes)
        self.memory = [TYPES[c_type(dtype)] for dtype in pattern.dtypes]
        rank = source.units + source.loops
        self.images = [hl.ImageParam(self.memory[k], rank, f"p{k}") for k in range(pattern.inputs)]
        for k, image in enumerate(self.images):
            self._constrain(image, k)
        dtypes = {v.constant: v.dtype for v in pattern.values if v.constant >= 0}
        self.numbers = [hl.Param(TYPES[c_type(dtypes[i])], f"c{i}") for i in range(len(dtypes))]
        self.extents = [hl.Param(INT, f"n{i}") for i in range(source.loops)]
        self.arguments = [*self.images, ZERO, *self.numbers, *self.extents]
        kinds = [per_unit for per_unit in (True, False) if source.outputs(per_unit)]
        computed = [hl.Func("units" if per_unit else "elements") for per_unit in kinds]
        # Where a unit computes the values that its stores depend on.
        self.unit_level = (
            hl.LoopLevel(computed[0], self.units[-1]) if self.units else hl.LoopLevel.root()
        )
        self.values: dict[int, hl.Func] = {}
        for stage in range(1 + max(value.stage for value in pattern.values)):
            if stage:
                self._reduce(stage)
            for v, value in enumerate(pattern.values):
                if value.stage == stage and not value.reduces:
                    self.values[v] = self._defined(v)
        outputs = [self._output(*each) for each in zip(computed, kinds, strict=True)]
        if len(outputs) > 1:
            self._run_together(*outputs)
        self.pipeline = hl.Pipeline(outputs)

    def _constrain(self, image: Any, k: int) -> None:
        """Declare the innermost stride of operand `k`, if it is known."""
        stride = {"unit": 1, "back": -1}.get(self.source.access(k))
        image.dim(0).set_stride(hl.Expr() if stride is None else hl.Expr(stride))

    # ------------------------------------------------------------ values

    def _type(self, v: int) -> hl.Type:
        dtype = self.pattern.values[v].dtype
        return hl.Bool() if dtype == BOOL else TYPES[c_type(dtype)]

    def _value(self, v: int) -> hl.Expr:
        moves = self.pattern.values[v].level > UNIT
        return hl.Expr(self.values[v][(*self.units, *(self.loops if moves else ()))])

    def _defined(self, v: int) -> hl.Func:
        value = self.pattern.values[v]
        axes = [*self.units, *(self.loops if value.level > UNIT else ())]
        type_ = self._type(v)
        names = {f"v{a}": self._value(a) for a in value.args}
        if value.operand >= 0:
            expression = self._loaded(value)
        else:
            if value.constant >= 0:
                names[f"c{value.constant}"] = hl.Expr(self.numbers[value.constant])
            if takes_index(value.op):
                names["i"] = self._index()
            text = c_of(self.pattern, value)
            expression = CText(self.functions, axes).value(text, names, type_)
        func = _define(hl.Func(f"v{v}"), axes, [convert(type_, expression)])
        if v in self.pattern.rows:
            for axis, extent in zip(self.loops, self.extents, strict=True):
                func.bound(axis, 0, extent)  # with vectors Halide would exceed the row
            self._in_vectors(func, self.loops[-1])
            func.hoist_storage_root().compute_at(self.unit_level)
        elif value.level == UNIT and isinstance(value.op, Elementwise) and value.op.costly:
            if self.source.columns:
                func.bound_storage(self.units[-1], self.columns)
                self._in_vectors(func, self.units[-1])
            func.store_in(STACK).compute_at(self.unit_level)
        return func

    def _loaded(self, value: Value) -> hl.Expr:
        loops = self.loops if value.level > UNIT else [0] * len(self.loops)
        indices = self.source.order(self.units, loops)
        if self.source.access(value.operand) in FIXED:
            indices[0] = 0
        return self.images[value.operand][tuple(indices)]

    def _index(self) -> hl.Expr:
        index = constant(hl.Int(64), 0)
        for axis, extent in zip(self.loops, self.extents, strict=True):
            index = index * hl.cast(hl.Int(64), extent) + hl.cast(hl.Int(64), axis)
        return index

    # ------------------------------------------------------------ reductions

    def _reduce(self, stage: int) -> None:
        """Define the reductions of a run over the loops: of stretches, then of their results."""
        reductions, side, columns = self.pattern.reduced(stage - 1), self.side, self.source.columns
        *extents, n = (hl.Expr(extent) for extent in self.extents)
        begin, outer = hl.Var("begin"), self.loops[:-1]
        lane = self.units[-1] if columns else hl.Var("lane")
        axes = [*self.units] if columns else [lane, *self.units]
        stretch, total = hl.Func(f"stretch{stage}"), hl.Func(f"total{stage}")
        stretch_parts = accumulators_of(self.pattern, reductions, total=False)
        total_parts = accumulators_of(self.pattern, reductions, total=True)
        _begin(stretch, [*axes, begin, *outer], stretch_parts)
        step = hl.RDom([(0, STEPS)])
        first_row = (begin * STEPS + step.x) * side
        step.where(first_row < n)
        index = first_row if columns else first_row + lane
        step.where(hl.likely(index < n))  # the last rows, or the last vector, have their own loop
        elements = [self._element(v, [*outer, index]) for v in reductions]
        _combine(stretch, [*axes, begin, *outer], stretch_parts, elements)
        _begin(total, axes, total_parts)
        stretches = (n + STEPS * side - 1) // (STEPS * side)
        loops = hl.RDom([(0, n) for n in (stretches, *reversed(extents))])
        begin, *outer = (loops[i] for i in (0, *range(len(extents), 0, -1)))
        results = dict(zip(reductions, _entries(stretch, [*axes, begin, *outer]), strict=True))
        nothing = constant(DOUBLE, 0)
        partials = [convert(TYPES[t], results.pop(v, nothing)) for v, t, *_ in total_parts]
        _combine(total, axes, total_parts, partials)
        total.store_in(STACK).compute_at(self.unit_level)
        stretch.store_in(STACK).compute_at(total, begin)
        # Halide partitions the loop inside each stretch where vectors end, not that over stretches.
        total.update(0).partition(begin, hl.Partition.Never)
        for func in (stretch, total):
            if columns:
                func.bound_storage(lane, self.columns)
            else:
                func.bound(lane, 0, side)
            for part in (func, func.update(0).reorder(lane, *func.rvars(0))):
                if columns:
                    self._in_vectors(part, lane)
                else:
                    part.vectorize(lane)
        is_small = len(self.pattern.values) <= FEW_VALUES
        if columns and is_small and not is_costly(self.pattern, stage - 1):
            # Several rows are accumulated between a load and a store of the columns' results.
            # In larger kernels that saves little time, and compiling takes twice as long.
            rows, row = hl.RVar("rows"), hl.RVar("row")
            update = stretch.update(0).split(step.x, rows, row, UNROLLED)
            update.reorder(hl.Var("in"), row, lane, rows).unroll(row)
        self._fold(total, total_parts)

    def _fold(self, total: hl.Func, parts: Sequence[Accumulator]) -> None:
        """Fold the lanes of totals to one, and define the values of the reductions."""
        side = self.side
        while side > 1:
            side //= 2
            half = hl.RDom([(0, side)])
            new_half = _entries(total, [half.x + side, *self.units])
            _combine(total, [half.x, *self.units], parts, new_half)
            total.update(total.num_update_definitions() - 1).vectorize(half.x)
        axes = [*self.units] if self.source.columns else [0, *self.units]
        results: dict[int, hl.Expr] = {}
        for (v, *_), x in zip(parts, _entries(total, axes), strict=True):
            # Infinities make the rounding errors of additions NaN.
            text = "x - x == 0 ? y + x : y" if v in results else "x"
            results[v] = CText().value(text, {"x": x, "y": results.get(v, x)}, x.type())
        for v, x in results.items():
            self.values[v] = _define(hl.Func(f"v{v}"), self.units, [convert(self._type(v), x)])

    def _element(self, v: int, index: Exprs) -> hl.Expr:
        """Return an element of the operand of reduction `v`."""
        # Of all axes, even if the value does not vary: Halide runs over the axes of a function.
        func = hl.Func(f"element{v}")
        _define(func, (*self.units, *self.loops), [self._value(self.pattern.values[v].args[0])])
        return hl.Expr(func[(*self.units, *index)])

    # ------------------------------------------------------------ outputs

    def _output(self, computed: hl.Func, per_unit: bool) -> hl.Func:
        """Define the function that computes all outputs of a kind; return one that stores them."""
        outputs, stored = self.source.outputs(per_unit), computed
        loops = [] if per_unit else self.loops
        order = self.source.order(self.units, loops)
        entries = [convert(self.memory[k], self._value(self.pattern.source(k))) for k in outputs]
        _define(computed, order, entries)
        if self.source.delayed:  # store a stretch of all outputs when all of it is computed
            stored = _define(hl.Func("stored"), order, _entries(computed, order))
            inside = hl.Var("stretch")
            stored.split(order[0], order[0], inside, AHEAD, GUARD)
            self._in_vectors(stored, inside)
            computed.compute_at(stored, order[0]).store_in(STACK)
            computed.bound_storage(order[0], AHEAD)
        for buffer, k in zip(stored.output_buffers(), outputs, strict=True):
            if per_unit and not self.source.columns:
                buffer.dim(0).set_stride(hl.Expr())
            else:
                self._constrain(buffer, k)
        if self.source.columns:
            inside, unit = hl.Var("inside"), self.units[-1]
            if self.pattern.form == "lane":
                computed.bound(unit, 0, self.columns)
            computed.split(unit, unit, inside, self.columns, GUARD)
            computed.reorder(inside, *reversed(loops), *reversed(self.units))
            self._in_vectors(computed, inside)
        elif loops:
            self._in_vectors(computed, order[0])
        return stored

    def _in_vectors(self, f: Any, x: hl.Var) -> None:
        f.split(x, x, hl.Var("in"), self.vector, GUARD).vectorize(hl.Var("in"))

    def _run_together(self, units: hl.Func, elements: hl.Func) -> None:
        """Store both kinds of outputs in one loop over the same units."""
        elements.compute_with(units, self.units[-1])
        source, target = units.output_buffers()[0], elements.output_buffers()[0]
        places = [axis.name() for axis in elements.args()]
        for i, axis in enumerate(units.args()):
            bounds = source.dim(i)
            target.dim(places.index(axis.name())).set_bounds(bounds.min(), bounds.extent())
