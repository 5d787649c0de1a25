"""The pipeline of a kernel, how it is scheduled, and its machine code.

Values are inlined into what combines or stores them.  Softmax, exp(x - max(x)) / sum, for example:

    for each unit:                     threads have units of their own
      lanes = max(lanes, x)            in vectors
      total = max(total, lanes)
      ...                              the sum, alike
      y = exp(x - total) / sum         in vectors

Reductions along the innermost axis have lanes, which are combined in order at the end.  Where that
axis is kept, elements beside one another are reduced together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import halide as hl

from minigraph import options as settings
from minigraph.graph import BOOL, DType
from minigraph.jit.c.body import combine, identity
from minigraph.jit.expression import c_type, takes_index
from minigraph.jit.halide.c_text import CText
from minigraph.jit.halide.source import FUNCTIONS, HalideSource, text_of, totals_of
from minigraph.jit.halide.values import TYPES, ZERO, binary, number, to
from minigraph.jit.pattern import UNIT, Value

LANES = 32  # that a reduction along the innermost axis has
COLUMNS = 128  # that are reduced together
STRETCH = 256  # elements that are computed before outputs are written that may overwrite inputs
GUARD = hl.TailStrategy.GuardWithIf  # nothing is computed twice: an output may overwrite an input
FEATURES = ("no_runtime", "no_asserts", "no_bounds_query")
FIXED = ("fixed", "same")  # accesses of what stays along the innermost axis
Exprs = list[Any]


def compile_kernel(
    source: HalideSource, folder: Path, without: Sequence[str], debug: bool
) -> bytes:
    """Return the object that has a kernel's function; RuntimeError where Halide makes none.

    folder   keeps the object, and the program that Halide makes of the schedule
    without  how the names of instructions begin that the kernel must not use
    debug    print the schedule and that program
    """
    host = str(hl.get_host_target()).split("-")
    used = [name for name in host if not name.startswith(tuple(without))]
    target = hl.Target("-".join((*used, *FEATURES)))
    path, text = (folder / f"{source.name}.{end}" for end in ("o", "stmt"))
    try:
        made = KernelPipeline(source, target.natural_vector_size(hl.UInt(8)))
        made.pipeline.compile_to_object(str(path), made.arguments, source.name, target)
    except hl.HalideError as error:
        raise RuntimeError(str(error)) from None
    if debug or settings.jit_keep_interm():
        form = hl.StmtOutputFormat.Text
        made.pipeline.compile_to_lowered_stmt(str(text), made.arguments, form, target)
    if debug:
        made.pipeline.print_loop_nest()
        print(source.kernel, text.read_text(), sep="\n", flush=True)
    return path.read_bytes()


def memory_type(dtype: DType) -> hl.Type:
    """Return the type in which memory holds an element."""
    return TYPES[c_type(dtype)]


def value_type(dtype: DType) -> hl.Type:
    """Return the type in which a kernel holds an element."""
    return hl.Bool() if dtype == BOOL else memory_type(dtype)


def _define(f: hl.Func, at: Sequence[Any], entries: Exprs) -> None:
    f[tuple(at)] = entries[0] if len(entries) == 1 else hl.Tuple(entries)


def _entries(f: hl.Func, at: Sequence[Any], count: int) -> Exprs:
    found = f[tuple(at)]
    return [hl.Expr(found)] if count == 1 else [hl.Expr(found[i]) for i in range(count)]


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
        self.lanes = [hl.Var("k")] if pattern.lanes > 1 else []
        self.vector = vector // max(4, *(value.dtype.itemsize for value in pattern.values))
        rank = len(self._order(self.units, self.loops))
        self.images = [
            hl.ImageParam(memory_type(dtype), rank, f"p{k}")
            for k, dtype in enumerate(pattern.dtypes[: pattern.inputs])
        ]
        for k, image in enumerate(self.images):
            self._constrain(image, k)
        dtypes = {v.constant: v.dtype for v in pattern.values if v.constant >= 0}
        self.constants = [hl.Param(memory_type(dtypes[i]), f"c{i}") for i in range(len(dtypes))]
        self.extents = [hl.Param(hl.Int(32), f"n{i}") for i in range(source.loops)]
        self.values: dict[int, hl.Func] = {}
        self.totals: list[hl.Func] = []  # what holds the results of reductions if outputs do
        self.sums: list[list[hl.Func]] = []  # of each stage what combines elements, the last first
        for stage in range(1 + max(value.stage for value in pattern.values)):
            if stage:
                self._reduce(stage)
            for v, value in enumerate(pattern.values):
                if value.stage == stage and not value.reduces:
                    self.values[v] = self._defined(v)
        self.pipeline = hl.Pipeline([*self.totals, *self._outputs(True), *self._outputs(False)])

    @property
    def arguments(self) -> list[Any]:
        return [*self.images, ZERO, *self.constants, *self.extents]

    # ------------------------------------------------------------ axes

    def _order(self, units: Sequence[Any], loops: Sequence[Any]) -> Exprs:
        return self.source.order(units, loops, self.lanes)

    def _constrain(self, image: Any, k: int) -> None:
        """Say what is known of the innermost stride of operand `k`."""
        access = self.pattern.accesses[k]
        known = 1 if self.lanes or access == "unit" else -1 if access == "back" else None
        image.dim(0).set_stride(hl.Expr() if known is None else hl.Expr(known))

    def _at(self, v: int, loops: Sequence[Any]) -> Exprs:
        moving = loops if self.pattern.values[v].level > UNIT else []
        return [*self.units, *moving, *self.lanes]

    def _value(self, v: int, loops: Sequence[Any]) -> hl.Expr:
        return hl.Expr(self.values[v][tuple(self._at(v, loops))])

    # ------------------------------------------------------------ values

    def _defined(self, v: int) -> hl.Func:
        value, at = self.pattern.values[v], self._at(v, self.loops)
        names: dict[str, Any] = {f"v{a}": self._value(a, self.loops) for a in value.args}
        type_ = value_type(value.dtype)
        made = hl.Func(f"v{v}")
        if value.operand >= 0:
            made[tuple(at)] = self._loaded(value)
            return made
        if value.constant >= 0:
            x = hl.Expr(self.constants[value.constant])
            names[f"c{value.constant}"] = binary("!=", x, 0) if value.dtype == BOOL else x
        if value.op is not None and takes_index(value.op):
            names["i"] = self._index()
        evaluated = CText(self.functions, at)
        made[tuple(at)] = evaluated.value(text_of(self.pattern, value), names, type_)
        return made

    def _loaded(self, value: Value) -> hl.Expr:
        k = value.operand
        at = self._order(self.units, self.loops if value.level > UNIT else [0] * len(self.loops))
        fixed = not self.pattern.across[k] if self.lanes else self.pattern.accesses[k] in FIXED
        if fixed:
            at[0] = 0
        found = self.images[k][tuple(at)]
        return binary("!=", found, 0) if self.pattern.dtypes[k] == BOOL else found

    def _index(self) -> hl.Expr:
        index = number(hl.Int(64), 0)
        for at, extent in zip(self.loops, self.extents, strict=True):
            index = index * hl.cast(hl.Int(64), extent) + hl.cast(hl.Int(64), at)
        return index

    # ------------------------------------------------------------ reductions

    def _reduce(self, stage: int) -> None:
        found = self.pattern.reduced(stage - 1)
        at = [*self.units, *self.lanes]
        total, nothing = hl.Func(f"total{stage}"), self._identities(found)
        _define(total, at, nothing)
        sums = [total]
        if self.pattern.form == "row" and not self.lanes:
            sums.append(self._partial(stage, found))
            lane = hl.RDom([(0, LANES)])
            self._combine(total, at, found, _entries(sums[1], (lane.x, *at), len(nothing)))
        else:
            loops = hl.RDom([(0, hl.Expr(n)) for n in reversed(self.extents)])
            index = [loops[i] for i in reversed(range(len(self.extents)))]
            self._combine(total, at, found, self._elements(found, index))
        results, place = total, at
        if self.source.mixed:
            results, place = hl.Func(f"held{stage}"), self._order(self.units, [])
            _define(results, place, _entries(total, at, len(nothing)))
            self._schedule_units(results, [sums])
            self.totals.append(results)
        else:
            self.sums.append(sums)
        numbers = iter(_entries(results, place, len(nothing)))
        for v in found:
            result = next(numbers)
            if len(self._types(v)) > 1:
                rest = next(numbers)
                # Infinities leave NaN in what additions round off.
                apart = hl.strict_float(rest - rest == hl.f64(0))
                result = hl.strict_float(result + hl.select(apart, rest, hl.f64(0)))
            made = self.values[v] = hl.Func(f"v{v}")
            made[tuple(at)] = to(value_type(self.pattern.values[v].dtype), result)

    def _partial(self, stage: int, found: Sequence[int]) -> hl.Func:
        """The lanes of reductions along the innermost axis; the last elements join the first."""
        lane, n = hl.Var("lane"), hl.Expr(self.extents[-1])
        at = (lane, *self.units)
        partial = hl.Func(f"lanes{stage}")
        _define(partial, at, self._identities(found))
        outer = [(0, hl.Expr(n)) for n in reversed(self.extents[:-1])]
        for extent, first, width in ((n // LANES, 0, LANES), (n % LANES, n // LANES * LANES, 1)):
            loops = hl.RDom([(0, extent), *outer])
            inner, *others = (loops[i] for i in range(len(self.extents)))
            if width > 1:
                index = [*reversed(others), hl.Expr(inner) * LANES + lane]
                place: tuple[Any, ...] = at
            else:
                index = [*reversed(others), first + inner]
                place = (inner, *self.units)
            self._combine(partial, place, found, self._elements(found, index))
        return partial

    def _types(self, v: int) -> list[hl.Type]:
        """The types of the numbers in which a reduction combines."""
        return [TYPES[name] for name in totals_of(self.pattern, self.pattern.values[v])]

    def _identities(self, found: Sequence[int]) -> Exprs:
        made: Exprs = []
        for v in found:
            type_, *others = self._types(v)
            made.append(
                CText("", ()).value(identity(self.pattern, self.pattern.values[v]), {}, type_)
            )
            made += [number(other, 0) for other in others]
        return made

    def _elements(self, found: Sequence[int], index: Sequence[Any]) -> Exprs:
        """What an element gives to each reduction."""
        made: Exprs = []
        for v in found:
            # Of all axes, though the value may stay: Halide runs over those that it sees.
            element, (type_, *others) = hl.Func(f"element{v}"), self._types(v)
            x = self._value(self.pattern.values[v].args[0], self.loops)
            wider = hl.cast(type_, x) if x.type().is_float() else to(type_, x)
            element[(*self.units, *self.loops, *self.lanes)] = wider
            made.append(hl.Expr(element[(*self.units, *index, *self.lanes)]))
            made += [number(other, 0) for other in others]
        return made

    def _combine(self, f: hl.Func, at: Sequence[Any], found: Sequence[int], new: Exprs) -> None:
        made: Exprs = []
        pairs = zip(new, _entries(f, at, len(new)), strict=True)
        for v in found:
            (x, y), types = next(pairs), self._types(v)
            if len(types) == 1:
                text = combine(self.pattern.values[v], "new", "old")
                made.append(CText("", ()).value(text, {"new": x, "old": y}, types[0]))
                continue
            rest, kept = next(pairs)
            total = hl.strict_float(x + y)
            added = hl.strict_float(total - y)
            lost = hl.strict_float((y - (total - added)) + (x - added))
            made += [total, hl.strict_float((kept + rest) + lost)]
        _define(f, at, made)

    # ------------------------------------------------------------ outputs and schedules

    def _outputs(self, per_unit: bool) -> list[hl.Func]:
        """The function that stores all outputs of a kind, in their order."""
        wanted = [
            (k, store)
            for k, store in enumerate(self.pattern.stores, self.pattern.inputs)
            if store.per_unit == per_unit
        ]
        if not wanted:
            return []
        made = hl.Func("units" if per_unit else "elements")
        order = self._order(self.units, [] if per_unit else self.loops)
        entries = [
            to(memory_type(self.pattern.dtypes[k]), self._value(store.value, self.loops))
            for k, store in wanted
        ]
        computed = hl.Func("computed") if self.source.delayed else made
        _define(computed, order, entries)
        if self.source.delayed:
            self._delay(made, computed, order, len(entries))
        for buffer, (k, _) in zip(made.output_buffers(), wanted, strict=True):
            if per_unit and not self.lanes and self.pattern.form != "column":
                buffer.dim(0).set_stride(hl.Expr())
            else:
                self._constrain(buffer, k)
        if per_unit or self.pattern.form != "map":
            self._schedule_units(computed, self.sums, full=not per_unit)
        else:
            self._in_vectors(computed, order[0])
        return [made]

    def _delay(self, made: hl.Func, computed: hl.Func, order: Exprs, count: int) -> None:
        """Let outputs be written when a stretch of all of them is computed."""
        _define(made, order, _entries(computed, order, count))
        inside = hl.Var("stretch")
        made.split(order[0], order[0], inside, STRETCH, GUARD)
        self._in_vectors(made, inside)
        computed.compute_at(made, order[0]).store_in(hl.MemoryType.Stack)
        computed.bound_storage(order[0], STRETCH)

    def _in_vectors(self, f: Any, x: hl.Var) -> None:
        if self.lanes:
            f.vectorize(x, min(self.vector, self.pattern.lanes))
        else:
            f.split(x, x, hl.Var("in"), self.vector, GUARD).vectorize(hl.Var("in"))

    def _schedule_units(self, f: hl.Func, sums: list[list[hl.Func]], full: bool = False) -> None:
        """Schedule what units store, and in it the reductions that it needs."""
        loops = list(reversed(self.loops)) if full else []
        if self.lanes:
            (k,) = self.lanes
            f.bound(k, 0, self.pattern.lanes)
            self._in_vectors(f, k)
            point = self.units[-1]
        elif self.pattern.form == "column":
            x, inside = self.units[-1], hl.Var("inside")
            f.split(x, x, inside, COLUMNS, GUARD)
            f.reorder(inside, *loops, x, *reversed(self.units[:-1]))
            self._in_vectors(f, inside)
            point = x
        else:
            if full:
                self._in_vectors(f, loops[0])
            point = self.units[-1]
        for total, *partial in sums:
            for each in (total, *partial):
                each.compute_at(f, point).store_in(hl.MemoryType.Stack)
            if partial:
                self._schedule_lanes(partial[0])
            else:
                self._schedule_columns(total)

    def _schedule_lanes(self, f: hl.Func) -> None:
        lane = f.args()[0]
        f.bound(lane, 0, LANES).vectorize(lane, min(self.vector, LANES))
        update = f.update(0)
        update.reorder(lane, *f.rvars(0))
        update.vectorize(lane, min(self.vector, LANES))
        f.update(1).unscheduled()

    def _schedule_columns(self, f: hl.Func) -> None:
        """Reduce what lies side by side together."""
        x = self.lanes[0] if self.lanes else self.units[-1]
        if self.lanes:
            f.bound(x, 0, self.pattern.lanes)
        else:
            f.bound_storage(x, COLUMNS)
        update = f.update(0)
        update.reorder(x, *f.rvars(0))
        for each in (f, update):
            self._in_vectors(each, x)
