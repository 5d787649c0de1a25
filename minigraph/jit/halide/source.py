"""The source of a Halide kernel: its values in C, and the layouts of its operands.

A kernel serves all shapes with the same number of axes and the same broadcasting.  Its arguments
are the inputs, a zero, the constants, the extents of the loops, and the outputs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from minigraph.jit.c.body import accumulators, combine, compensated, identity
from minigraph.jit.c.prelude import PRELUDE
from minigraph.jit.domain import NotFusible
from minigraph.jit.expression import expression
from minigraph.jit.kernel import SpecialisedKernel
from minigraph.jit.loops import Axis, LoopNest
from minigraph.jit.pattern import KernelPattern, Value
from minigraph.jit.source import KernelSource
from minigraph.ops.reduction import Reduction

T = TypeVar("T")
# Of a reduction: the reduction, the C type, the first value, and the C expression that combines
# new{n} with old{n} in accumulator n of a run.
Accumulator = tuple[int, str, str, str]

# C text: the C backend's functions, and functions whose vector variants the C library has.
FUNCTIONS = "\n".join(
    (
        *re.findall(r"^MG_INLINE .*?^}", PRELUDE, re.MULTILINE | re.DOTALL),
        Path(__file__).with_name("functions.c").read_text(),
    )
)
DEFINED = frozenset(re.findall(r"mg_(\w+)\(", FUNCTIONS))
# Further functions for C text: Halide's, or the C library's for one element at a time.
LIBRARY = (
    *("sqrt", "floor", "ceil", "trunc", "rint", "fabs", "copysign", "exp", "log", "pow"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
)
SUPPORTED = DEFINED.union(name + suffix for name in LIBRARY for suffix in ("", "f"))
INDEX_LIMIT = 1 << 31  # larger than any number of elements of an axis or a stride


@dataclass(frozen=True)
class HalideSource(KernelSource):
    """The source of a kernel, with the pattern that it was generated from.

    units, loops  numbers of axes; lanes are the last axis of the units
    delayed       whether to compute a stretch of all outputs before any is written, because Halide
                  assumes that buffers do not overlap
    """

    pattern: KernelPattern = field(compare=False, kw_only=True)
    units: int = field(compare=False, kw_only=True)
    loops: int = field(compare=False, kw_only=True)
    delayed: bool = field(compare=False, kw_only=True)

    @property
    def columns(self) -> bool:
        """Whether units are contiguous."""
        return self.pattern.form in ("column", "lane")

    @property
    def overwrites(self) -> bool:
        """Whether outputs may overwrite inputs, which Halide only allows for a single output."""
        return self.delayed or len(self.pattern.stores) == 1

    def order(self, units: Sequence[T], loops: Sequence[T]) -> list[T]:
        """Return the axes of an operand, the innermost first."""
        if self.columns:
            return [units[-1], *reversed(loops), *reversed(units[:-1])]
        return [*reversed(loops), *reversed(units)]

    def axes(self, nest: LoopNest) -> list[Axis]:
        """Return the axes of the units, then those of the loops."""
        lanes = (nest.lanes,) if self.pattern.form == "lane" else ()
        return [*(*nest.units, *lanes)[: self.units], *nest.loops]

    def access(self, k: int) -> str:
        if self.pattern.form == "lane":
            return "unit" if self.pattern.across[k] else "same"
        return self.pattern.accesses[k]

    def outputs(self, per_unit: bool) -> list[int]:
        """Return the operands that have an element for each unit, or for each element of it."""
        stores = enumerate(self.pattern.stores, self.pattern.inputs)
        return [k for k, store in stores if store.per_unit == per_unit]


def halide_source(kernel: SpecialisedKernel) -> HalideSource:
    """Return the source of a kernel; raise NotFusible if Halide does not support it."""
    pattern, nest = kernel.pattern, kernel.nest
    if pattern.windows or any(kernel.shifts):
        raise NotFusible("Halide's kernels do not support borders")
    for n, strides in (*nest.units, *nest.loops):
        if n >= INDEX_LIMIT or any(abs(s) >= INDEX_LIMIT for s in strides):
            raise NotFusible("Halide's indices have 32 bits")
        if any(s % size for s, size in zip(strides, nest.sizes, strict=True)):
            raise NotFusible("a stride is not a multiple of the elements' size")
    units = 0 if pattern.form == "map" else len(nest.units) + (pattern.form == "lane")
    same_kind = pattern.form == "map" or all(store.per_unit for store in pattern.stores)
    delayed = same_kind and len(pattern.stores) > 1 and any(kernel.inplace)
    return _source(pattern, units, len(nest.loops), delayed)


@functools.lru_cache(4096)
def _source(pattern: KernelPattern, units: int, loops: int, delayed: bool) -> HalideSource:
    functions = pattern.functions()
    values = [f"v{v} = {c_of(pattern, value)};" for v, value in enumerate(pattern.values)]
    called = set(re.findall(r"\b(\w+) ?\(", "\n".join((*functions, *values))))
    defined = set(re.findall(r"(\w+)\([^;{}]*\) \{", "\n".join(functions)))
    # A cast looks like a call of a type; statements look like calls, too.
    called -= defined.union(("for", "return", "sizeof", "memcpy"))
    unknown = sorted(name for name in called - SUPPORTED if not name.endswith("_t"))
    if unknown:
        raise NotFusible(f"Halide has no function {unknown[0]}")
    # Without ops: they are in the values, and have attributes that no kernel depends on.
    printed = replace(pattern, values=tuple(replace(value, op=None) for value in pattern.values))
    header = f"// NAME: {units} unit axes, {loops} loop axes, outputs delayed: {delayed}"
    text = "\n".join((header, f"// {printed}", *values))
    return HalideSource(
        text, tuple(functions), pattern=pattern, units=units, loops=loops, delayed=delayed
    )


def c_of(pattern: KernelPattern, value: Value) -> str:
    """Return C for a value; for a reduction, its operator, identity and operand."""
    if value.literal:
        return value.literal
    if value.constant >= 0:
        return f"c{value.constant}"
    if value.op is None:
        return f"p{value.operand}[]"
    if isinstance(value.op, Reduction):
        return f"{value.op.combine}, {value.op.identity}, v{value.args[0]}"
    operands = [pattern.values[a].dtype for a in value.args]
    return expression(value.op, operands, value.dtype, [f"v{a}" for a in value.args])


def accumulators_of(
    pattern: KernelPattern, reductions: Sequence[int], total: bool
) -> list[Accumulator]:
    """Return the accumulators of reductions.

    total  whether they are of all elements, not of a short stretch; then a sum of doubles has a
           second accumulator for its rounding errors (O. Møller, 1965)
    """
    parts: list[Accumulator] = []
    for v in reductions:
        value, n = pattern.values[v], len(parts)
        new, old = f"new{n}", f"old{n}"
        types = accumulators(pattern, value)
        parts.append((v, types[total], identity(pattern, value), combine(value, new, old)))
        if total and compensated(pattern, value):
            addend = f"(({new} + {old}) - {old})"
            error = f"({old} - (({new} + {old}) - {addend})) + ({new} - {addend})"
            parts.append((v, types[total], "0", f"(old{n + 1} + new{n + 1}) + ({error})"))
    return parts
