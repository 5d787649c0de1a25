"""The mapping of a kernel's axes to threads, and the words of a kernel's argument.

A thread computes a *group*: a few neighbours along the innermost axis that it loads at once.  If
the innermost axis is reduced, or nothing is, the thread steps from group to group along the loops.
If the innermost axis is kept ("column"), the thread keeps its columns and steps down the rows.
Lanes need no special case: a block of channels is like any other columns.

The level of a value is `UNIT` if it is the same in all steps of a thread, `ROW` if it differs from
row to row, `ELEMENT` if it differs within a group.  Values of level `UNIT` that differ from column
to column are *wide*.

The argument holds, in words of 8 bytes: the addresses of the operands (inputs, then outputs) and of
the scratch memory; the extents of the unit and the loop axes; the strides of each operand along
them, in bytes; the constants; the options of the launch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from minigraph.jit.expression import takes_index
from minigraph.jit.kernel import SpecialisedKernel, with_levels
from minigraph.jit.loops import MAX_TILE, SCALAR_ACCESSES, LoopNest
from minigraph.jit.pattern import KernelPattern

VECTOR_BYTES = 16  # bytes that a thread loads at once
MAX_GROUP = 8  # elements of a group
IN_32_BITS = 1 << 30  # elements below which 32 bits hold an index plus the stride of the grid
RESIDENT = ((4, 24), (3, 48))  # (blocks of a multiprocessor, floats of a thread at most)
MAX_SUMS = 24  # sums of a thread, so that static shared memory suffices
MIN_ROW = 64  # elements of a row from which on threads of a map keep their columns

MAP_OPTIONS = ("aligned",)
SHARED_OPTIONS = ("aligned", "threads", "units", "splits", "stage", "combine", "write")


@dataclass(frozen=True)
class ThreadMapping:
    """The parameters of a kernel's source.

    units, loops  numbers of axes of either kind
    constants     number of constants in the argument
    in_32_bits    whether 32 bits suffice for all numbers of elements and all offsets in bytes
    max_group     elements of a group, at most
    """

    pattern: KernelPattern
    units: int
    loops: int
    constants: int
    in_32_bits: bool
    max_group: int = MAX_GROUP

    @property
    def integer(self) -> str:
        """The C type of numbers of elements and offsets."""
        return "int" if self.in_32_bits else "int64_t"

    @property
    def column(self) -> bool:
        return self.pattern.form == "column"

    @property
    def reduces(self) -> bool:
        return bool(self.pattern.reductions)

    @property
    def shared(self) -> bool:
        """Whether each block has its own units; else a grid-stride loop covers all elements."""
        return self.reduces or self.column

    @property
    def innermost(self) -> int:
        """The axis of a thread's group."""
        return self.units - 1 if self.column else self.units + self.loops - 1

    @property
    def rows(self) -> range:
        """The axes along which a thread steps from row to row."""
        return range(self.units, self.units + self.loops - (not self.column))

    @functools.cached_property
    def group(self) -> int:
        """The number of contiguous elements that a thread loads at once."""
        pairs = zip(self.pattern.accesses, self.pattern.dtypes, strict=True)
        sizes = [dtype.itemsize for access, dtype in pairs if access == "unit"]
        size = min(self.max_group, VECTOR_BYTES // min(sizes)) if sizes else 1
        while self.column and size > 1 and size * len(self.pattern.reductions) > MAX_SUMS:
            size //= 2
        return size

    @functools.cached_property
    def resident(self) -> int:
        """The resident blocks of columns that a multiprocessor should have; 0: unspecified.

        A thread keeps the loop-invariant values of its columns in registers; a sum takes two.
        """
        if not self.column:
            return 0
        pattern, registers = self.pattern, 0
        for stage in range(pattern.stages):
            operands = {a for v in pattern.run(stage) for a in pattern.values[v].args}
            registers = max(
                registers, 2 * len(pattern.reduced(stage)) + len(operands & pattern.wide)
            )
        return next((n for n, limit in RESIDENT if self.group * registers <= limit), 2)

    def bounds(self, window: int) -> list[tuple[int, int]]:
        """The counters of a window, after the operands, and the position of its bounds."""
        return [(self.operands + c, bound) for c, bound in self.pattern.bounds(window).items()]

    @property
    def options(self) -> tuple[str, ...]:
        return SHARED_OPTIONS if self.shared else MAP_OPTIONS

    # ------------------------------------------------------------ positions of the words

    @property
    def operands(self) -> int:
        return len(self.pattern.dtypes)

    def extent(self, axis: int) -> str:
        return f"({self.integer})w[{self.operands + 1 + axis}]"

    def stride(self, k: int, axis: int) -> str:
        axes = self.units + self.loops
        return f"({self.integer})w[{self.operands + 1 + axes + k * axes + axis}]"

    @property
    def first_constant(self) -> int:
        return self.operands + 1 + (self.pattern.records + 1) * (self.units + self.loops)

    def option(self, name: str) -> str:
        position = self.first_constant + self.constants + self.options.index(name)
        return f"({self.integer})w[{position}]"

    @property
    def words(self) -> int:
        return self.first_constant + self.constants + len(self.options)


def map_to_threads(kernel: SpecialisedKernel) -> tuple[ThreadMapping, LoopNest]:
    """Return the mapping of a kernel's axes to threads, and the axes without lanes."""
    nest = _down_columns(_unlaned(kernel), kernel)
    pattern = replace(
        kernel.pattern,
        form=nest.form,
        values=tuple(with_levels(kernel.pattern.values, nest)),
        accesses=nest.accesses,
        lanes=1,
        across=(False,) * len(kernel.pattern.dtypes),
        kept=(),
    )
    axes = (*nest.units, *nest.loops)
    reach = [sum((n - 1) * abs(steps[k]) for n, steps in axes) for k in range(len(nest.sizes))]
    # Indices and offsets, also one step of the grid-stride loop beyond the end.
    in_32_bits = max(nest.count * nest.length, *reach) < IN_32_BITS
    mapping = ThreadMapping(
        pattern, len(nest.units), len(nest.loops), len(kernel.constants), in_32_bits
    )
    if pattern.windows or set(SCALAR_ACCESSES).intersection(nest.accesses):
        mapping = replace(mapping, max_group=_longest_group(mapping, nest, kernel))
    return mapping, nest


def _longest_group(mapping: ThreadMapping, nest: LoopNest, kernel: SpecialisedKernel) -> int:
    """Return the largest number of elements of a group with strided operands or windows.

    A window contains all of a group or nothing.  Strided elements are loaded one by one, which pays
    in a tile whose short rows are neighbours in the operand, because threads of a few rows then
    load from the same sectors.
    """
    axes = [*nest.units, *nest.loops]
    length, inner = axes.pop(mapping.innermost)
    for k, access in enumerate(nest.accesses):
        tile = (
            not mapping.shared and length <= MAX_TILE and axes and axes[-1][1][k] == nest.sizes[k]
        )
        if access == "back" or (access == "strided" and not tile):
            return 1
    bounds = [
        (
            inner[c],
            math.gcd(*kernel.constants[position : position + 2], *(steps[c] for _, steps in axes)),
        )
        for window, _ in enumerate(mapping.pattern.windows)
        for c, position in mapping.bounds(window)
    ]

    def fits(size: int) -> bool:
        fits_bounds = (unit >= length * step or unit % (size * step) == 0 for step, unit in bounds)
        return all(fits_bounds) and _aligned(replace(mapping, max_group=size), nest, kernel.shifts)

    return next(size for size in (MAX_GROUP, 4, 2, 1) if size == 1 or fits(size))


def words(
    mapping: ThreadMapping,
    nest: LoopNest,
    constants: Sequence[int],
    options: Sequence[int],
    operands: Sequence[int],
    scratch: int,
) -> list[int]:
    """Return the argument; `options` has all but the first, which depends on the addresses."""
    axes = (*nest.units, *nest.loops)
    strides = [steps[k] for k in range(mapping.pattern.records) for _, steps in axes]
    extents = [n for n, _ in axes]
    aligned = _aligned(mapping, nest, operands)
    return [*operands, scratch, *extents, *strides, *constants, int(aligned), *options]


def _aligned(mapping: ThreadMapping, nest: LoopNest, operands: Sequence[int]) -> bool:
    """Whether each group of each operand is aligned for vector loads."""
    axes = [*nest.units, *nest.loops]
    del axes[mapping.innermost]
    for k, (access, size) in enumerate(zip(mapping.pattern.accesses, nest.sizes, strict=True)):
        unit = min(VECTOR_BYTES, mapping.group * size)
        if access == "unit" and any(n % unit for n in (operands[k], *(s[k] for _, s in axes))):
            return False
    return True


def _unlaned(kernel: SpecialisedKernel) -> LoopNest:
    nest = kernel.nest
    lanes, no_lanes = (nest.lanes,) * (nest.form == "lane"), (1, (0,) * len(nest.lanes[1]))
    if not kernel.pattern.reductions:
        return replace(nest, form="map", units=(), loops=nest.loops + lanes, lanes=no_lanes)
    if not lanes:
        return nest
    return replace(nest, form="column", units=nest.units + lanes, lanes=no_lanes)


def _down_columns(nest: LoopNest, kernel: SpecialisedKernel) -> LoopNest:
    """Let the threads of a map keep their columns if all rows read the same vectors."""
    if nest.form != "map" or len(nest.loops) == 1 or nest.loops[-1][0] < MIN_ROW or nest.scales:
        return nest
    if any(takes_index(value.op) for value in kernel.pattern.values):
        return nest
    *rows, inner = nest.loops
    column = replace(nest, form="column", units=(inner,), loops=tuple(rows))
    vectors = (not column.moves(k) and column.accesses[k] == "unit" for k in range(len(nest.sizes)))
    return column if any(vectors) and set(SCALAR_ACCESSES).isdisjoint(column.accesses) else nest
