"""Products and convolutions of float32 in three products of bfloat16, for AMX.

A number of float32 is, but for 2**-17 of its size, a sum of two of bfloat16, high and low.  Of the
product of two such sums the last of the four terms is the smallest, and is left out:

    x * y = x_high * y_high + x_high * y_low + x_low * y_high

One product of bfloat16 adds up all three, in float32: of [x_high, x_high, x_low] and [y_high,
y_low, y_high], which lie side by side along the axis that is summed over.  oneDNN computes it.

XLA calls it BF16_BF16_F32_X3.  G. Henry, P. Tang and A. Heinecke, "Leveraging the bfloat16
artificial intelligence datatype for higher-precision computations" (2019).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from minigraph.autotune.candidate import Candidate
from minigraph.cache.machine import features
from minigraph.devices.cpu import compiler, onednn, primitives
from minigraph.devices.cpu.converted import Conversion, ConvertedKernel
from minigraph.devices.cpu.kernel import NativeKernel, call
from minigraph.devices.cpu.onednn_kernel import Implementation
from minigraph.devices.problem import (
    ROLES,
    TRANSPOSED,
    WORTH_A_WARNING,
    Arrangement,
    conv_of,
    operations,
    product_of,
    strides_in,
)
from minigraph.graph import BFLOAT16, Op, Spec
from minigraph.jit.macros import with_macros
from minigraph.jit.small_float import conversion
from minigraph.jit.source import KernelSource
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import Layout
from minigraph.ops.matmul import Matmul

NAME = "bf16x3"  # the precision, as the option calls it
PARTS = 3
TEXT = Path(__file__).with_suffix(".c").read_text()
LEAST = WORTH_A_WARNING  # operations: with fewer, splitting the operands takes as long
# The axis of each operand that is summed over.
SUMMED: dict[type[Op], tuple[int, int]] = {
    Matmul: (-1, -2),
    Conv2d: (1, 1),
    Conv2dBackwardData: (1, 0),
    Conv2dBackwardWeights: (0, 0),
}


def why_not() -> str:
    """Return why this machine does not compute so; "" if it does."""
    if onednn.library() is None:
        return "oneDNN is missing: pip install onednn-cpu-gomp (x86-64)"
    if "amx_bf16" not in features() or BFLOAT16 not in onednn.dtypes():
        return "it takes a processor with AMX, or ONEDNN_MAX_CPU_ISA forbids it"
    return "" if compiler.compiler() else compiler.NO_COMPILER


def candidates(arrangement: Arrangement, threads: int) -> Iterator[Candidate]:
    """Yield oneDNN's ways to compute a node in parts of its operands."""
    node, _, layouts = arrangement
    product = product_of(node)
    if product is None or node.dtype != onednn.F32 or operations(node) < LEAST:
        return
    if type(product.op) in ROLES and conv_of(product.op).groups > 1:
        return
    rows, specs = zip(
        *(
            _in_parts(x.spec, axis, layout)
            for x, axis, layout in zip(node.inputs, SUMMED[type(product.op)], layouts, strict=False)
        ),
        strict=True,
    )
    xs = [*specs, *(x.spec for x in node.inputs[2:])]
    strides = [strides_in(to, x) for to, x in zip(layouts, xs, strict=False)]
    offered = primitives.implementations_of(product.op, xs, node.specs, strides)
    for implementation in primitives.one_of_each_family(offered, threads):
        make = functools.partial(_kernel, arrangement, implementation, rows, specs, threads)
        yield Candidate(f"{implementation.name} {NAME}", layouts, make, precision=NAME)


def _in_parts(x: Spec, axis: int, layout: Layout) -> tuple[int, Spec]:
    """Return how many rows of an operand in memory get three parts each, and its spec then.

    axis  that is summed over, of matrices, of images as [n, c, h, w], or of weights
    """
    shape = [*x.shape]
    if len(shape) == 5 and axis == 1 and shape[1] == 1:
        axis = 4  # channels last
    if axis >= 0:
        rows = math.prod(shape[:axis])
    elif (axis == -1) == (layout != TRANSPOSED):  # innermost in memory
        rows = x.size // shape[axis]
    else:
        rows = math.prod(shape[:-2])
    shape[axis] *= PARTS
    return rows, Spec((*shape,), BFLOAT16)


def _kernel(
    arrangement: Arrangement,
    implementation: Implementation,
    rows: Sequence[int],
    specs: Sequence[Spec],
    threads: int,
) -> ConvertedKernel:
    node = arrangement.node
    before: list[Conversion | None] = [None for _ in node.inputs]
    for i, (outer, spec) in enumerate(zip(rows, specs, strict=True)):
        split = call(_text(first=i == 0), threads, outer, spec.size // PARTS // outer)
        before[i] = Conversion(NativeKernel(node, [split]), spec)
    strided = [layout == TRANSPOSED for layout in arrangement.layouts[: len(node.inputs)]]
    return ConvertedKernel(
        before, primitives.kernel_of(implementation, threads), [None], NAME, strided
    )


@functools.cache
def _text(first: bool) -> KernelSource:
    to, from_ = conversion(onednn.F32, BFLOAT16), conversion(BFLOAT16, onednn.F32)
    support = tuple(dict.fromkeys((*to[1], *from_[1])))
    return KernelSource(with_macros(TEXT, FIRST=int(first)), support)
