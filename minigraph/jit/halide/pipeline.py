"""The pipeline of a kernel, its schedule, and its machine code.

Values are inlined where they are reduced or stored, except for costly ones that are used again.
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

LANES = 64  # in which stretches along the innermost axis are reduced
STEPS = 64  # that each lane, or column, takes in its elements' type before they join a total
UNROLLED = 4  # rows of a step down columns in kernels of few values
FEW_VALUES = 8
AHEAD = 256  # elements that are computed before outputs are written that may overwrite inputs
STACK = hl.MemoryType.Stack
GUARD = hl.TailStrategy.GuardWithIf  # nothing is computed twice: an output may overwrite an input
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
    used = [name for name in host if not name.startswith(tuple(without))]
    target = hl.Target("-".join((*used, *FEATURES)))
    path, text = (folder / f"{source.name}.{end}" for end in ("o", "stmt"))
    try:
        made = KernelPipeline(source, target.natural_vector_size(hl.UInt(8)))
        made.pipeline.compile_to_object(str(path), made.arguments, source.name, target)
    except (hl.HalideError, ParseError) as error:
        raise RuntimeError(str(error)) from None
    if debug or settings.jit_keep_interm():
        form = hl.StmtOutputFormat.Text
        made.pipeline.compile_to_lowered_stmt(str(text), made.arguments, form, target)
    if debug:
        made.pipeline.print_loop_nest()
        print(source.kernel, text.read_text(), sep="\n", flush=True)
    return path.read_bytes()


def _define(f: hl.Func, at: Sequence[Any], entries: Exprs) -> hl.Func:
    f[tuple(at)] = entries[0] if len(entries) == 1 else hl.Tuple(entries)
    return f


def _entries(f: hl.Func, at: Sequence[Any]) -> Exprs:
    found = f[tuple(at)]
    count = f.outputs()
    return [hl.Expr(found)] if count == 1 else [hl.Expr(found[i]) for i in range(count)]


def _begin(f: hl.Func, at: Sequence[Any], parts: Sequence[Accumulator]) -> None:
    _define(f, at, [CText().value(first, {}, TYPES[t]) for _, t, first, _ in parts])


def _combine(f: hl.Func, at: Sequence[Any], parts: Sequence[Accumulator], new: Exprs) -> None:
    names = {f"new{n}": x for n, x in enumerate(new)}
    names |= {f"old{n}": x for n, x in enumerate(_entries(f, at))}
    _define(f, at, [CText().value(how, names, TYPES[t]) for _, t, _, how in parts])


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
        self.inside = (
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
        known = {"unit": 1, "back": -1}.get(self.source.access(k))
        image.dim(0).set_stride(hl.Expr() if known is None else hl.Expr(known))

    # ------------------------------------------------------------ values

    def _type(self, v: int) -> hl.Type:
        dtype = self.pattern.values[v].dtype
        return hl.Bool() if dtype == BOOL else TYPES[c_type(dtype)]

    def _value(self, v: int) -> hl.Expr:
        moves = self.pattern.values[v].level > UNIT
        return hl.Expr(self.values[v][(*self.units, *(self.loops if moves else ()))])

    def _defined(self, v: int) -> hl.Func:
        value = self.pattern.values[v]
        at = [*self.units, *(self.loops if value.level > UNIT else ())]
        type_ = self._type(v)
        names = {f"v{a}": self._value(a) for a in value.args}
        if value.operand >= 0:
            found = self._loaded(value)
        else:
            if value.constant >= 0:
                names[f"c{value.constant}"] = hl.Expr(self.numbers[value.constant])
            if takes_index(value.op):
                names["i"] = self._index()
            text = c_of(self.pattern, value)
            found = CText(self.functions, at).value(text, names, type_)
        made = _define(hl.Func(f"v{v}"), at, [convert(type_, found)])
        if v in self.pattern.rows:
            for axis, extent in zip(self.loops, self.extents, strict=True):
                made.bound(axis, 0, extent)  # vectors would have it go on behind the row
            self._in_vectors(made, self.loops[-1])
            made.hoist_storage_root().compute_at(self.inside)
        elif value.level == UNIT and isinstance(value.op, Elementwise) and value.op.costly:
            if self.source.columns:
                made.bound_storage(self.units[-1], self.columns)
                self._in_vectors(made, self.units[-1])
            made.store_in(STACK).compute_at(self.inside)
        return made

    def _loaded(self, value: Value) -> hl.Expr:
        loops = self.loops if value.level > UNIT else [0] * len(self.loops)
        at = self.source.order(self.units, loops)
        if self.source.access(value.operand) in FIXED:
            at[0] = 0
        return self.images[value.operand][tuple(at)]

    def _index(self) -> hl.Expr:
        index = constant(hl.Int(64), 0)
        for at, extent in zip(self.loops, self.extents, strict=True):
            index = index * hl.cast(hl.Int(64), extent) + hl.cast(hl.Int(64), at)
        return index

    # ------------------------------------------------------------ reductions

    def _reduce(self, stage: int) -> None:
        """Define the reductions of a run over the loops: of short stretches, then of these."""
        found, side, columns = self.pattern.reduced(stage - 1), self.side, self.source.columns
        *extents, n = (hl.Expr(extent) for extent in self.extents)
        begin, outer = hl.Var("begin"), self.loops[:-1]
        lane = self.units[-1] if columns else hl.Var("lane")
        at = [*self.units] if columns else [lane, *self.units]
        stretch, total = hl.Func(f"stretch{stage}"), hl.Func(f"total{stage}")
        short, long = (accumulators_of(self.pattern, found, whole) for whole in (False, True))
        _begin(stretch, [*at, begin, *outer], short)
        step = hl.RDom([(0, STEPS)])
        first = (begin * STEPS + step.x) * side
        step.where(first < n)
        index = first if columns else first + lane
        step.where(hl.likely(index < n))  # the last rows, or the last vector, have their own loop
        elements = [self._element(v, [*outer, index]) for v in found]
        _combine(stretch, [*at, begin, *outer], short, elements)
        _begin(total, at, long)
        stretches = (n + STEPS * side - 1) // (STEPS * side)
        loops = hl.RDom([(0, n) for n in (stretches, *reversed(extents))])
        begin, *outer = (loops[i] for i in (0, *range(len(extents), 0, -1)))
        new = dict(zip(found, _entries(stretch, [*at, begin, *outer]), strict=True))
        nothing = constant(DOUBLE, 0)
        _combine(total, at, long, [convert(TYPES[t], new.pop(v, nothing)) for v, t, *_ in long])
        total.store_in(STACK).compute_at(self.inside)
        stretch.store_in(STACK).compute_at(total, begin)
        # Not the loop over stretches is taken apart where vectors end, but the one in each.
        total.update(0).partition(begin, hl.Partition.Never)
        for each in (stretch, total):
            if columns:
                each.bound_storage(lane, self.columns)
            else:
                each.bound(lane, 0, side)
            for part in (each, each.update(0).reorder(lane, *each.rvars(0))):
                if columns:
                    self._in_vectors(part, lane)
                else:
                    part.vectorize(lane)
        few = len(self.pattern.values) <= FEW_VALUES
        if columns and few and not is_costly(self.pattern, stage - 1):
            # Several rows are accumulated between a load and a store of the columns' results.
            # In larger kernels these take little of the time, and compiling takes twice as long.
            rows, row = hl.RVar("rows"), hl.RVar("row")
            update = stretch.update(0).split(step.x, rows, row, UNROLLED)
            update.reorder(hl.Var("in"), row, lane, rows).unroll(row)
        self._fold(total, long)

    def _fold(self, total: hl.Func, long: Sequence[Accumulator]) -> None:
        """Fold the lanes of totals to one, and define the values of the reductions."""
        side = self.side
        while side > 1:
            side //= 2
            half = hl.RDom([(0, side)])
            new_half = _entries(total, [half.x + side, *self.units])
            _combine(total, [half.x, *self.units], long, new_half)
            total.update(total.num_update_definitions() - 1).vectorize(half.x)
        at = [*self.units] if self.source.columns else [0, *self.units]
        results: dict[int, hl.Expr] = {}
        for (v, *_), x in zip(long, _entries(total, at), strict=True):
            # Infinities make the rounding errors of additions NaN.
            text = "x - x == 0 ? y + x : y" if v in results else "x"
            results[v] = CText().value(text, {"x": x, "y": results.get(v, x)}, x.type())
        for v, x in results.items():
            self.values[v] = _define(hl.Func(f"v{v}"), self.units, [convert(self._type(v), x)])

    def _element(self, v: int, index: Exprs) -> hl.Expr:
        """Return an element of the operand of reduction `v`."""
        # Of all axes, though the value may stay: Halide runs over those that it sees.
        made = hl.Func(f"element{v}")
        _define(made, (*self.units, *self.loops), [self._value(self.pattern.values[v].args[0])])
        return hl.Expr(made[(*self.units, *index)])

    # ------------------------------------------------------------ outputs

    def _output(self, computed: hl.Func, per_unit: bool) -> hl.Func:
        """Define the function that computes all outputs of a kind; return one that stores them."""
        wanted, made = self.source.outputs(per_unit), computed
        loops = [] if per_unit else self.loops
        order = self.source.order(self.units, loops)
        entries = [convert(self.memory[k], self._value(self.pattern.source(k))) for k in wanted]
        _define(computed, order, entries)
        if self.source.delayed:  # until a stretch of all outputs is computed
            made = _define(hl.Func("stored"), order, _entries(computed, order))
            inside = hl.Var("stretch")
            made.split(order[0], order[0], inside, AHEAD, GUARD)
            self._in_vectors(made, inside)
            computed.compute_at(made, order[0]).store_in(STACK)
            computed.bound_storage(order[0], AHEAD)
        for buffer, k in zip(made.output_buffers(), wanted, strict=True):
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
        return made

    def _in_vectors(self, f: Any, x: hl.Var) -> None:
        f.split(x, x, hl.Var("in"), self.vector, GUARD).vectorize(hl.Var("in"))

    def _run_together(self, units: hl.Func, elements: hl.Func) -> None:
        """Store both kinds of outputs in one loop over the same units."""
        elements.compute_with(units, self.units[-1])
        first, other = units.output_buffers()[0], elements.output_buffers()[0]
        places = [axis.name() for axis in elements.args()]
        for i, axis in enumerate(units.args()):
            same = first.dim(i)
            other.dim(places.index(axis.name())).set_bounds(same.min(), same.extent())
