"""Sorting, binary search, argmax, cumulative sums and cross entropies of rows, in CUDA."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minigraph.devices.cuda.handwritten import (
    SHORT_ROW,
    Kernels,
    c_function,
    element,
    handwritten_kernel,
    threads_for,
)
from minigraph.devices.cuda.kernel import CudaKernel
from minigraph.graph import Node, sizes_around
from minigraph.jit.expression import c_type
from minigraph.ops.cumulative import CumulativeProduct, CumulativeSum, Recurrence
from minigraph.ops.elementwise import kind
from minigraph.ops.loss import CrossEntropy, CrossEntropyBackward
from minigraph.ops.ordering import Argsort, Searchsorted
from minigraph.ops.reduction import Argmax


def argsort(op: Argsort, node: Node) -> CudaKernel:
    (x,) = node.inputs
    _, n, inner = sizes_around(x.shape, op.axis)
    macros = {**element(x.dtype), "DESCENDING": int(op.descending)}
    return handwritten_kernel(node, "argsort", macros, x.size, (n, inner, op.count))


def searchsorted(op: Searchsorted, node: Node) -> CudaKernel:
    x, v = node.inputs
    macros = {**element(x.dtype), "RIGHT": int(op.right)}
    sizes = (x.shape[-1], math.prod(v.shape[-1:]))
    return handwritten_kernel(node, "searchsorted", macros, node.size, sizes)


def argmax(op: Argmax, node: Node) -> CudaKernel:
    x = node.inputs[0]
    outer, n, inner = sizes_around(x.shape, *op.axes)
    macros = element(x.dtype)
    if inner == 1 and n > SHORT_ROW:
        return handwritten_kernel(node, "argmax_along", macros, outer, (n,), threads_for(n))
    return handwritten_kernel(node, "argmax_across", macros, outer * inner, (n, inner))


def cumulative_sum(op: CumulativeSum, node: Node) -> CudaKernel | None:
    # In float64 a partial sum may overflow although the running sum does not.
    splittable = node.dtype != np.float64
    identity = "-0.0" if kind(node.dtype) == "f" else "0"
    return _cumulative(op.axis, node, "+", identity, splittable, "n - 1 - j" if op.reverse else "j")


def recurrence(op: Recurrence, node: Node) -> CudaKernel | None:
    position = "n - 1 - j" if op.reverse else "j"
    return _cumulative(op.axis, node, "+", "0", False, position, " + inner" if op.reverse else "")


def _cumulative(
    axis: int,
    node: Node,
    operator: str,
    identity: str,
    splittable: bool = False,
    position: str = "j",
    factor: str | None = None,
) -> CudaKernel | None:
    """Return the kernel of a running sum, product or recurrence along rows.

    identity    result for no elements
    splittable  whether several threads may compute parts of a row
    position    C expression for the position of element j in the order of the scan
    factor      C expression for the distance from an element of a recurrence to its factor
    """
    if kind(node.dtype) == "b":
        return None
    outer, n, inner = sizes_around(node.shape, axis)
    macros: dict[str, object] = {**element(node.dtype), "IDENTITY": identity, "AT": position}
    if inner == 1 and n > SHORT_ROW and splittable:
        return handwritten_kernel(
            node, "cumulative_parts", macros, outer, (n,), threads_for(n), inplace=((0,),)
        )
    combine = f"total {operator} LOAD(p[at])"
    if factor is not None:
        combine = f"j ? LOAD(p[at]) + LOAD(f[at{factor}]) * total : LOAD(p[at])"
    macros |= {"OUT": len(node.inputs), "COMBINE": combine}
    count, inplace = outer * inner, ((0,), ())[: len(node.inputs)]
    return handwritten_kernel(node, "cumulative", macros, count, (n, inner), inplace=inplace)


def _cross_entropy(node: Node, labels: int, inplace: Sequence[Sequence[int]]) -> CudaKernel:
    """Return the kernel of a node whose operand `labels` are the labels, behind the logits."""
    logits, label = node.inputs[labels - 1 : labels + 1]
    n = logits.shape[-1]
    macros = {
        **element(logits.dtype),
        "EXP": c_function("exp", logits.dtype),
        "LOG": c_function("log", logits.dtype),
        "L": c_type(label.dtype),
        "LABELS": labels,
        "BACKWARD": labels - 1,
    }
    threads = threads_for(n)
    return handwritten_kernel(
        node, "cross_entropy", macros, label.size, (n,), threads, inplace=inplace
    )


KERNELS: Kernels = {
    Argsort: argsort,
    Searchsorted: searchsorted,
    Argmax: argmax,
    CumulativeSum: cumulative_sum,
    CumulativeProduct: lambda op, node: _cumulative(op.axis, node, "*", "1"),
    Recurrence: recurrence,
    CrossEntropy: lambda op, node: _cross_entropy(node, 1, ()),
    CrossEntropyBackward: lambda op, node: _cross_entropy(node, 2, ((), (0,), ())),
}
