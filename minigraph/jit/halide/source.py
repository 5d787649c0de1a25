"""What a kernel of Halide is known by: its values in C, and how its operands lie in memory.

It serves every shape with as many axes and the same pattern of broadcasting.  Its arguments are the
inputs, a zero, the constants, the extents of the loops, and the outputs.  Where some have an
element for each unit and others for each element of it, the results of reductions are outputs, too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from minigraph.jit.c.body import accumulators
from minigraph.jit.c.prelude import PRELUDE
from minigraph.jit.domain import NotFusible
from minigraph.jit.expression import C_TYPES, expression, stored, support
from minigraph.jit.kernel import SpecialisedKernel
from minigraph.jit.loops import Ints
from minigraph.jit.pattern import KernelPattern, Value
from minigraph.jit.source import KernelSource
from minigraph.ops.reduction import Reduction

T = TypeVar("T")

# Functions that are C here: those of the C backend, and what the C library has in vectors there.
FUNCTIONS = "\n".join(
    (
        *re.findall(r"^MG_INLINE .*?^}", PRELUDE, re.MULTILINE | re.DOTALL),
        Path(__file__).with_name("functions.c").read_text(),
    )
)
OWN = frozenset(re.findall(r"mg_(\w+)\(", FUNCTIONS))
# What else C text may call: Halide has it, or the C library for one element at a time.
CALLED = (
    "sqrt floor ceil trunc rint fabs copysign exp log pow sin cos tan asin acos atan atan2 sinh "
    "cosh tanh asinh acosh atanh"
)
KNOWN = OWN.union(name + suffix for name in CALLED.split() for suffix in ("", "f"))
SIZES = {name: dtype.itemsize for dtype, name in C_TYPES.items()}
MOST = 1 << 31  # elements that an axis, or a stride, has at most


@dataclass(frozen=True)
class HalideSource(KernelSource):
    """The text of a kernel, with what it was made of.

    units, loops  how many axes there are of each
    delayed       whether a stretch of all outputs is computed before any is written: Halide takes
                  it that buffers are apart, and else would read what it has overwritten
    """

    pattern: KernelPattern = field(compare=False, kw_only=True)
    units: int = field(compare=False, kw_only=True)
    loops: int = field(compare=False, kw_only=True)
    delayed: bool = field(compare=False, kw_only=True)

    def order(self, units: Sequence[T], loops: Sequence[T], lanes: Sequence[T]) -> list[T]:
        """Return the axes of an operand, the innermost first."""
        if self.pattern.form == "column":
            return [units[-1], *reversed(loops), *reversed(units[:-1])]
        return [*lanes, *reversed(loops), *reversed(units)]

    @property
    def mixed(self) -> bool:
        """Whether some outputs have an element for each unit, and others one for each element."""
        return len({store.per_unit for store in self.pattern.stores}) > 1

    @property
    def totals(self) -> list[int]:
        """The bytes of an element of each result of a reduction that is an output, by stage."""
        stages = range(max(v.stage for v in self.pattern.values) if self.mixed else 0)
        reduced = [self.pattern.values[v] for i in stages for v in self.pattern.reduced(i)]
        types = (name for value in reduced for name in totals_of(self.pattern, value))
        return [SIZES[name] for name in types]

    @property
    def results(self) -> list[int]:
        """The operands that are outputs in the order of the kernel's arguments."""
        stores = [*enumerate(self.pattern.stores, self.pattern.inputs)]
        return [k for per_unit in (True, False) for k, s in stores if s.per_unit == per_unit]


def halide_source(kernel: SpecialisedKernel) -> HalideSource:
    """Return the source of a kernel; NotFusible where Halide cannot compute it."""
    if kernel.pattern.windows or any(kernel.shifts):
        raise NotFusible("Halide's kernels have no borders")
    axes = (*kernel.nest.units, *kernel.nest.loops)
    for n, strides in axes:
        if n >= MOST or any(abs(s) >= MOST for s in strides):
            raise NotFusible("Halide counts elements in 32 bits")
        if any(s % size for s, size in zip(strides, kernel.nest.sizes, strict=True)):
            raise NotFusible("elements are not a whole number of elements apart")
    units = 0 if kernel.pattern.form == "map" else len(kernel.nest.units)
    return _source(kernel.pattern, units, len(kernel.nest.loops), _delayed(kernel))


def _delayed(kernel: SpecialisedKernel) -> bool:
    """Whether outputs may overwrite what several of them read, and stretches of all can wait."""
    pattern = kernel.pattern
    per_unit = all(store.per_unit for store in pattern.stores)
    if pattern.lanes > 1 or not (per_unit or pattern.form == "map"):
        return False
    return overwritten(kernel, delayed=False) != kernel.inplace


def overwritten(kernel: SpecialisedKernel, delayed: bool) -> tuple[Ints, ...]:
    """Return for each input which outputs may overwrite it.

    Unless stretches wait, an output is made of what it overwrites, and no other is.  Outputs with
    one element for a unit come first, and those of elements are made then.
    """
    if delayed:
        return kernel.inplace
    pattern = kernel.pattern
    read = [inputs_of(pattern, store.value) for store in pattern.stores]
    mixed = len({store.per_unit for store in pattern.stores}) > 1
    return tuple(
        tuple(
            i
            for i in outputs
            if [x for x, inputs in enumerate(read) if k in inputs] == [i]
            and not (mixed and pattern.stores[i].per_unit)
        )
        for k, outputs in enumerate(kernel.inplace)
    )


def inputs_of(pattern: KernelPattern, v: int) -> set[int]:
    """Return the inputs of which a value is made."""
    made_of, stack = {v}, [v]
    while stack:
        new = set(pattern.values[stack.pop()].args) - made_of
        made_of |= new
        stack += new
    return {pattern.values[v].operand for v in made_of}


@functools.lru_cache(4096)
def _source(pattern: KernelPattern, units: int, loops: int, delayed: bool) -> HalideSource:
    lines = [f"// Halide: {pattern.form}, {units} unit axes, {loops} loop axes"]
    lines += [f"// lanes: {pattern.lanes}"] if pattern.lanes > 1 else []
    lines += ["// outputs are delayed"] if delayed else []
    for k, dtype in enumerate(pattern.dtypes):
        lines.append(f"// operand {k}: {dtype.name}, {pattern.accesses[k]}, {pattern.across[k]}")
    functions: dict[str, None] = {}
    for v, value in enumerate(pattern.values):
        lines.append(f"// {value.dtype.name}, level {value.level}, stage {value.stage}")
        lines.append(f"v{v} = {text_of(pattern, value)};")
        if value.op is not None and not value.reduces:
            operands = [pattern.values[a].dtype for a in value.args]
            functions.update(dict.fromkeys(support(value.op, operands, value.dtype)))
    for k, store in enumerate(pattern.stores, pattern.inputs):
        lines.append(f"p{k}{'[unit]' if store.per_unit else '[]'} = v{store.value};")
    text = "\n".join(("// NAME", *lines))
    called = set(re.findall(r"\b(\w+) ?\(", "\n".join((*functions, text))))
    own = set(re.findall(r"(\w+)\([^;{}]*\) \{", "\n".join(functions)))
    # A cast looks like a call of a type, and so do statements.
    called -= own.union(("for", "return", "sizeof", "memcpy"))
    unknown = sorted(name for name in called - KNOWN if not name.endswith("_t"))
    if unknown:
        raise NotFusible(f"Halide has no {unknown[0]}")
    return HalideSource(
        text,
        tuple(functions),
        pattern=pattern,
        units=units,
        loops=loops,
        delayed=delayed,
    )


def text_of(pattern: KernelPattern, value: Value) -> str:
    """Return C for a value: of a reduction, how two of its parts are combined."""
    if value.literal:
        return value.literal
    if value.constant >= 0:
        return f"c{value.constant}"
    if value.op is None:
        return f"p{value.operand}[]"
    if isinstance(value.op, Reduction):
        return f"{value.op.combine}, {value.op.identity}, v{value.args[0]}"
    operands = [pattern.values[a].dtype for a in value.args]
    text = expression(value.op, operands, value.dtype, [f"v{a}" for a in value.args])
    return stored(value.dtype, text)


def totals_of(pattern: KernelPattern, value: Value) -> list[str]:
    """Return the C types of the numbers that a reduction combines elements in.

    Of a sum of doubles the second has what its additions round off (O. Møller, 1965).
    """
    assert isinstance(value.op, Reduction)
    types = accumulators(pattern, value)
    return [*types] if value.op.adds and types == ("double", "double") else [types[1]]
