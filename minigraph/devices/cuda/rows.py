"""Sorting, binary search, argmax, cumulative sums and cross entropies of rows, in CUDA."""

from __future__ import annotations

import math

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


def cumulative(op: CumulativeSum | CumulativeProduct | Recurrence, node: Node) -> CudaKernel | None:
    if kind(node.dtype) == "b":
        return None
    outer, n, inner = sizes_around(node.shape, op.axis)
    is_sum, is_product = isinstance(op, CumulativeSum), isinstance(op, CumulativeProduct)
    reverse = getattr(op, "reverse", False)
    identity = "1" if is_product else "-0.0" if is_sum and kind(node.dtype) == "f" else "0"
    macros: dict[str, object] = {**element(node.dtype), "IDENTITY": identity}
    macros["AT"] = "n - 1 - j" if reverse else "j"
    # In float64 a partial sum may overflow although the running sum does not.
    if inner == 1 and n > SHORT_ROW and is_sum and node.dtype != np.float64:
        return handwritten_kernel(
            node, "cumulative_parts", macros, outer, (n,), threads_for(n), inplace=((0,),)
        )
    combine = f"total {'*' if is_product else '+'} LOAD(p[at])"
    if isinstance(op, Recurrence):
        at = "at + inner" if reverse else "at"
        combine = f"j ? LOAD(p[at]) + LOAD(f[{at}]) * total : LOAD(p[at])"
    macros |= {"OUT": len(node.inputs), "COMBINE": combine}
    count, inplace = outer * inner, ((0,), ())[: len(node.inputs)]
    return handwritten_kernel(node, "cumulative", macros, count, (n, inner), inplace=inplace)


def cross_entropy(op: CrossEntropy | CrossEntropyBackward, node: Node) -> CudaKernel:
    *dy, logits, label = node.inputs
    n = logits.shape[-1]
    macros = {
        **element(logits.dtype),
        "EXP": c_function("exp", logits.dtype),
        "LOG": c_function("log", logits.dtype),
        "L": c_type(label.dtype),
        "LABELS": len(node.inputs) - 1,
        "BACKWARD": len(dy),
    }
    threads, inplace = threads_for(n), ((), (0,), ()) if dy else ()
    return handwritten_kernel(
        node, "cross_entropy", macros, label.size, (n,), threads, inplace=inplace
    )


KERNELS: Kernels = {
    Argsort: argsort,
    Searchsorted: searchsorted,
    Argmax: argmax,
    CumulativeSum: cumulative,
    CumulativeProduct: cumulative,
    Recurrence: cumulative,
    CrossEntropy: cross_entropy,
    CrossEntropyBackward: cross_entropy,
}
