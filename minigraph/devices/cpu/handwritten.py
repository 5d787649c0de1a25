"""Handwritten C kernels of ops that are neither generated nor oneDNN's.

oneDNN has no cross entropy, and its softmax loses NaN and infinity.  Its local response norm keeps
a running sum over channels, in which the error of a large channel stays after the channel has left
the window.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from minigraph.devices.cpu.indexing import columns_per_thread, index_type
from minigraph.devices.cpu.kernel import KernelTable, NativeKernel, call
from minigraph.graph import BFLOAT16, BOOL, DType, Node, sizes_around
from minigraph.jit.expression import c_type
from minigraph.jit.macros import with_macros
from minigraph.jit.small_float import FLOAT16
from minigraph.ops.cumulative import CumulativeProduct, CumulativeSum, Recurrence
from minigraph.ops.elementwise import kind
from minigraph.ops.indexing import OneHot
from minigraph.ops.loss import CrossEntropy, CrossEntropyBackward
from minigraph.ops.normalization import LocalResponseNorm
from minigraph.ops.observation import Check
from minigraph.ops.ordering import Argsort, Searchsorted
from minigraph.ops.reduction import MAX_PLAIN_SUM, Argmax
from minigraph.program import round_up

LRN_BLOCK = 1024  # pixels whose sums stay in the first-level cache
ONE_BITS = {FLOAT16: "0x3c00", BFLOAT16: "0x3f80"}
# A heap is faster than sorting to find at most one in MAX_HEAP_ELEMENTS elements, or, in a short
# row, as many as the square root of its length.
MAX_HEAP_ELEMENTS = 64
MAX_SORTED_ROW = (1 << 32) - 1  # elements of a row that can be sorted: indices have 32 bits
# For cumulative sums: elements of a part of a row; the number of rows up to which rows are divided
# into parts; the largest number of columns of a vector loop.
ROW_PART, MAX_DIVIDED_ROWS, MAX_COLUMNS = 4096, 16, 512


def _text(name: str, **macros: object) -> str:
    """Return the source in the file of this name, with these macros.

    A macro for a function of the C library includes the parentheses of the call: `vector_math`
    searches the text for calls.
    """
    return with_macros(Path(__file__).with_name(f"{name}.c").read_text(), **macros)


def check(op: Check, node: Node, threads: int) -> NativeKernel:
    x, condition = node.inputs
    copy = call(_text("check"), x.spec.nbytes, condition.size)
    return NativeKernel(node, [copy], inplace=((0,), ()), validates_input=True)


def cross_entropy(
    op: CrossEntropy | CrossEntropyBackward, node: Node, threads: int
) -> NativeKernel:
    *dy, logits, labels = node.inputs
    macros = {
        "T": c_type(logits.dtype),
        "L": c_type(labels.dtype),
        "EXP(x)": "expf(x)" if logits.dtype.itemsize == 4 else "exp(x)",
        "BACKWARD": len(dy),
    }
    calls = [call(_text("cross_entropy", **macros), threads, labels.size, logits.shape[-1])]
    inplace = ((), (0,), ()) if dy else ()
    return NativeKernel(node, calls, inplace=inplace, validates_input=True)


def local_response_norm(op: LocalResponseNorm, node: Node, threads: int) -> NativeKernel:
    images, channels, *sides = node.shape
    element, power = c_type(node.dtype), "powf(x, y)" if node.dtype.itemsize == 4 else "pow(x, y)"
    total = "double" if op.size > MAX_PLAIN_SUM else element
    macros = {"T": element, "W": total, "POW(x, y)": power, "BLOCK": LRN_BLOCK}
    text = _text("local_response_norm", **macros)
    numbers = struct.unpack("<3q", struct.pack("<3d", op.alpha / op.size, op.beta, op.k))
    sizes = (images, channels, math.prod(sides), op.size)
    return NativeKernel(node, [call(text, threads, *sizes, *numbers)])


def one_hot(op: OneHot, node: Node, threads: int) -> NativeKernel:
    labels = node.inputs[0]
    one = ONE_BITS.get(node.dtype, "1")
    text = _text("one_hot", T=c_type(labels.dtype), R=c_type(node.dtype), ONE=one)
    return NativeKernel(node, [call(text, labels.size, op.size)], validates_input=True)


# ---------------------------------------------------------------- rows


def argsort(op: Argsort, node: Node, threads: int) -> NativeKernel | None:
    (x,) = node.inputs
    outer, n, inner = sizes_around(x.shape, op.axis)
    if n > MAX_SORTED_ROW:
        return None
    threads = min(threads, outer * inner)
    uses_heap = op.count * min(op.count, MAX_HEAP_ELEMENTS) <= n
    text = _text(
        "argsort",
        T=c_type(x.dtype),
        K=f"uint{8 * x.dtype.itemsize}_t",
        IS_BOOL=int(kind(x.dtype) == "b"),
        IS_FLOAT=int(kind(x.dtype) == "f"),
        IS_SIGNED=int(kind(x.dtype) == "i"),
        DESCENDING=int(op.descending),
        USE_HEAP=int(uses_heap),
    )
    pair = 2 * max(x.dtype.itemsize, 4)
    scratch = round_up((op.count if uses_heap else 2 * n) * pair)
    kernel_call = call(text, threads, outer, n, inner, op.count, scratch, scratch=True)
    return NativeKernel(node, [kernel_call], threads * scratch)


def searchsorted(op: Searchsorted, node: Node, threads: int) -> NativeKernel:
    x, v = node.inputs
    text = _text("searchsorted", T=c_type(x.dtype), RIGHT=int(op.right))
    rows = math.prod(x.shape[:-1])
    return NativeKernel(node, [call(text, threads, rows, x.shape[-1], v.shape[-1])])


def argmax(op: Argmax, node: Node, threads: int) -> NativeKernel | None:
    x = node.inputs[0]
    sizes = sizes_around(x.shape, *op.axes)
    if sizes[1] > np.iinfo(np.int32).max:
        return None
    return NativeKernel(node, [call(argmax_text(x.dtype, node.dtype), threads, *sizes)])


def argmax_text(dtype: DType, index: DType, with_maxima: bool = False) -> str:
    """Return the source of argmax along long rows.

    with_maxima  whether the kernel also returns the largest elements
    """
    types = {
        "T": c_type(dtype),
        "I": c_type(index),
        "K": index_type(dtype),
        "BOOL": int(dtype == BOOL),
    }
    return _text("argmax", **types, WITH_MAXIMA=int(with_maxima))


def cumulative(
    op: CumulativeSum | CumulativeProduct | Recurrence, node: Node, threads: int
) -> NativeKernel | None:
    if kind(node.dtype) == "b":
        return None
    is_float, is_sum = kind(node.dtype) == "f", isinstance(op, CumulativeSum)
    is_product = isinstance(op, CumulativeProduct)
    # -0 + -0 is -0, but 0 + -0 is 0.
    identity = "1" if is_product else "-0.0" if is_sum and is_float else "0"
    # Whether a row may be divided, which changes the order of rounding: in float64 a part of a sum
    # may overflow where the row does not.
    divisible = (is_sum and node.dtype != np.float64) or (is_product and not is_float)
    outer, n, inner = sizes_around(node.shape, op.axis)
    text = _text(
        "cumulative",
        T=c_type(node.dtype),
        W="double" if is_float else c_type(node.dtype),
        INPUTS=len(node.inputs),
        OPERATOR="*" if is_product else "+",
        IDENTITY=identity,
        REVERSE=int(getattr(op, "reverse", False)),
    )
    parts = math.ceil(n / ROW_PART) if divisible and inner == 1 and outer <= MAX_DIVIDED_ROWS else 1
    columns = min(columns_per_thread(threads, outer, inner, node.dtype), MAX_COLUMNS)
    kernel_call = call(text, threads, outer, n, inner, columns, parts, ROW_PART, scratch=True)
    scratch = round_up(8 * outer * parts) if parts > 1 else 0
    return NativeKernel(node, [kernel_call], scratch, inplace=((0,), ())[: len(node.inputs)])


KERNELS: KernelTable = {
    Argmax: argmax,
    Argsort: argsort,
    Check: check,
    CrossEntropy: cross_entropy,
    CrossEntropyBackward: cross_entropy,
    CumulativeProduct: cumulative,
    CumulativeSum: cumulative,
    LocalResponseNorm: local_response_norm,
    OneHot: one_hot,
    Recurrence: cumulative,
    Searchsorted: searchsorted,
}
