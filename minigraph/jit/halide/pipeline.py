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

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import halide as hl
from pycparser.c_parser import ParseError

from minigraph import options as settings
from minigraph.graph import BOOL
from minigraph.jit.expression import c_type, takes_index
from minigraph.jit.halide.c_text import CText
from minigraph.jit.halide.source import FUNCTIONS, HalideSource, combined, text_of
from minigraph.jit.halide.values import INT, TYPES, ZERO, number, to
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
        self.vector = vector // max(4, *(value.dtype.itemsize for value in pattern.values))
        self.columns = COLUMNS
        if pattern.form == "lane":
            self.columns, self.vector = pattern.lanes, min(self.vector, pattern.lanes)
        self.memory = [TYPES[c_type(dtype)] for dtype in pattern.dtypes]
        rank = source.units + source.loops
        images = [hl.ImageParam(self.memory[k], rank, f"p{k}") for k in range(pattern.inputs)]
        for k, image in enumerate(images):
            self._constrain(image, k)
        dtypes = {v.constant: v.dtype for v in pattern.values if v.constant >= 0}
        numbers = [hl.Param(TYPES[c_type(dtypes[i])], f"c{i}") for i in range(len(dtypes))]
        self.extents = [hl.Param(INT, f"n{i}") for i in range(source.loops)]
        self.arguments = [*images, ZERO, *numbers, *self.extents]
        self.images, self.numbers = images, numbers
        self.values: dict[int, hl.Func] = {}
        self.sums: list[list[hl.Func]] = []  # of each stage what combines elements, the last first
        self.kinds = [per_unit for per_unit in (True, False) if source.outputs(per_unit)]
        for stage in range(1 + max(value.stage for value in pattern.values)):
            if stage:
                self._reduce(stage)
            for v, value in enumerate(pattern.values):
                if value.stage == stage and not value.reduces:
                    self.values[v] = self._defined(v)
        self.pipeline = hl.Pipeline([self._output(per_unit) for per_unit in self.kinds])

    def _constrain(self, image: Any, k: int) -> None:
        """Say what is known of the innermost stride of operand `k`."""
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
            if value.op is not None and takes_index(value.op):
                names["i"] = self._index()
            text = text_of(self.pattern, value)
            found = CText(self.functions, at).value(text, names, type_)
        return _define(hl.Func(f"v{v}"), at, [to(type_, found)])

    def _loaded(self, value: Value) -> hl.Expr:
        loops = self.loops if value.level > UNIT else [0] * len(self.loops)
        at = self.source.order(self.units, loops)
        if self.source.access(value.operand) in FIXED:
            at[0] = 0
        return self.images[value.operand][tuple(at)]

    def _index(self) -> hl.Expr:
        index = number(hl.Int(64), 0)
        for at, extent in zip(self.loops, self.extents, strict=True):
            index = index * hl.cast(hl.Int(64), extent) + hl.cast(hl.Int(64), at)
        return index

    # ------------------------------------------------------------ reductions

    def _reduce(self, stage: int) -> None:
        found = self.pattern.reduced(stage - 1)
        total = _define(hl.Func(f"total{stage}"), self.units, self._identities(found))
        sums = [total]
        if self.source.columns:
            loops = hl.RDom([(0, hl.Expr(n)) for n in reversed(self.extents)])
            index = [loops[i] for i in reversed(range(len(self.extents)))]
            self._combine(total, self.units, found, self._elements(found, index))
        else:
            sums.append(self._partial(stage, found))
            lane = hl.RDom([(0, LANES)])
            self._combine(total, self.units, found, _entries(sums[1], (lane.x, *self.units)))
        place = self.units
        if len(self.kinds) > 1:  # both read the results from memory
            place = self.source.order(self.units, [])
            entries = _entries(total, self.units)
            total = _define(hl.Func(f"held{stage}"), place, entries).compute_root()
            self._schedule_units(total, [sums])
        else:
            self.sums.append(sums)
        results: dict[int, hl.Expr] = {}
        held = zip(self._combined(found), _entries(total, place), strict=True)
        for (v, i, *_), x in held:
            # Infinities leave NaN in what additions round off.
            text = "x - x == 0 ? y + x : y" if i else "x"
            results[v] = CText().value(text, {"x": x, "y": results.get(v, x)}, x.type())
        for v, x in results.items():
            made = to(self._type(v), x)
            self.values[v] = _define(hl.Func(f"v{v}"), self.units, [made])

    def _partial(self, stage: int, found: Sequence[int]) -> hl.Func:
        """The lanes of reductions along the innermost axis; the last elements join the first."""
        lane, n = hl.Var("lane"), hl.Expr(self.extents[-1])
        at = (lane, *self.units)
        partial = _define(hl.Func(f"lanes{stage}"), at, self._identities(found))
        outer = [(0, hl.Expr(n)) for n in reversed(self.extents[:-1])]
        for whole in (True, False):
            loops = hl.RDom([(0, n // LANES if whole else n % LANES), *outer])
            inner, *others = (hl.Expr(loops[i]) for i in range(len(self.extents)))
            index = inner * LANES + lane if whole else n // LANES * LANES + inner
            place = at if whole else (inner, *self.units)
            self._combine(partial, place, found, self._elements(found, [*reversed(others), index]))
        return partial

    def _combined(self, found: Sequence[int]) -> Iterator[tuple[int, int, hl.Type, str, str]]:
        """Yield the numbers that reductions combine elements in, with which of its own each is."""
        for v in found:
            for i, (type_, first, how) in enumerate(combined(self.pattern, self.pattern.values[v])):
                yield v, i, TYPES[type_], first, how

    def _identities(self, found: Sequence[int]) -> Exprs:
        return [CText().value(first, {}, type_) for _, _, type_, first, _ in self._combined(found)]

    def _elements(self, found: Sequence[int], index: Sequence[Any]) -> Exprs:
        """What an element gives to each reduction."""
        made: Exprs = []
        for v, i, type_, _, _ in self._combined(found):
            if i:
                made.append(number(type_, 0))
                continue
            # Of all axes, though the value may stay: Halide runs over those that it sees.
            element, x = hl.Func(f"element{v}"), self._value(self.pattern.values[v].args[0])
            wider = hl.cast(type_, x) if x.type().is_float() else to(type_, x)
            _define(element, (*self.units, *self.loops), [wider])
            made.append(hl.Expr(element[(*self.units, *index)]))
        return made

    def _combine(self, f: hl.Func, at: Sequence[Any], found: Sequence[int], new: Exprs) -> None:
        made: Exprs = []
        old = _entries(f, at)
        for n, (_, i, type_, _, how) in enumerate(self._combined(found)):
            pairs = zip(("new", "old"), (new, old), strict=True)
            names = {f"{name}{m}": xs[n - i + m] for name, xs in pairs for m in range(i + 1)}
            made.append(CText().value(how, names, type_))
        _define(f, at, made)

    # ------------------------------------------------------------ outputs and schedules

    def _output(self, per_unit: bool) -> hl.Func:
        """The function that stores all outputs of a kind, in their order."""
        wanted = self.source.outputs(per_unit)
        made = hl.Func("units" if per_unit else "elements")
        order = self.source.order(self.units, [] if per_unit else self.loops)
        computed = hl.Func("computed") if self.source.delayed else made
        entries = [to(self.memory[k], self._value(self.pattern.source(k))) for k in wanted]
        _define(computed, order, entries)
        if self.source.delayed:  # until a stretch of all outputs is computed
            _define(made, order, _entries(computed, order))
            inside = hl.Var("stretch")
            made.split(order[0], order[0], inside, STRETCH, GUARD)
            self._in_vectors(made, inside)
            computed.compute_at(made, order[0]).store_in(hl.MemoryType.Stack)
            computed.bound_storage(order[0], STRETCH)
        for buffer, k in zip(made.output_buffers(), wanted, strict=True):
            if per_unit and not self.source.columns:
                buffer.dim(0).set_stride(hl.Expr())
            else:
                self._constrain(buffer, k)
        if self.pattern.form == "map":
            self._in_vectors(computed, order[0])
        else:
            self._schedule_units(computed, self.sums, full=not per_unit)
        return made

    def _in_vectors(self, f: Any, x: hl.Var) -> None:
        f.split(x, x, hl.Var("in"), self.vector, GUARD).vectorize(hl.Var("in"))

    def _schedule_units(self, f: hl.Func, sums: list[list[hl.Func]], full: bool = False) -> None:
        """Schedule what units store, and in it the reductions that it needs."""
        loops = list(reversed(self.loops)) if full else []
        point = self.units[-1]
        if self.source.columns:
            inside = hl.Var("inside")
            if self.pattern.form == "lane":
                f.bound(point, 0, self.columns)
            f.split(point, point, inside, self.columns, GUARD)
            f.reorder(inside, *loops, point, *reversed(self.units[:-1]))
            self._in_vectors(f, inside)
        elif full:
            self._in_vectors(f, loops[0])
        for total, *partial in sums:
            for each in (total, *partial):
                each.compute_at(f, point).store_in(hl.MemoryType.Stack)
            if partial:
                lane = partial[0].args()[0]
                partial[0].bound(lane, 0, LANES).update(1).unscheduled()
                self._schedule_sums(partial[0], lane)
            else:
                self._schedule_sums(total.bound_storage(self.units[-1], self.columns), point)

    def _schedule_sums(self, f: hl.Func, x: hl.Var) -> None:
        """Reduce what lies side by side together."""
        update = f.update(0)
        update.reorder(x, *f.rvars(0))
        for each in (f, update):
            self._in_vectors(each, x)
