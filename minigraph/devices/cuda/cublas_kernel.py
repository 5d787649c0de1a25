"""The products of cuBLAS that compute a node, and the kernels that run them.

A row-major matrix is its transpose in column-major order.  So z = x @ y is computed as z.T = y.T
@ x.T, without a copy.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from minigraph.autotune.candidate import Candidate
from minigraph.devices.cuda import cublas
from minigraph.devices.cuda.cublas import TYPES, Algorithm, Descriptors, Gemm, Matrices
from minigraph.devices.cuda.driver import ALIGNMENT, LOAD_ALIGNMENT, aligned
from minigraph.devices.cuda.kernel import Addresses, LibraryKernel
from minigraph.devices.cuda.kernels import Exactness, epilogue_of, in_place, library_product
from minigraph.devices.problem import Arrangement, Product
from minigraph.graph import Node, Shape, Spec
from minigraph.jit.loops import Axes, Ints, collapse
from minigraph.ops.activation import Relu
from minigraph.ops.matmul import Matmul

MAX_BATCH = 65_535  # of a call of cublasLt


@dataclass(frozen=True, eq=False)
class CublasWay:
    """Calls of cuBLAS that compute a node, and the launches around them.

    label     prefix of its candidates' names
    strided   for each of the first two inputs, whether it may be a view with the given strides
    offsets   of y, x and z in each call, from the node's operands, in bytes
    epilogue  node that a generated kernel computes afterwards, in place
    """

    label: str
    gemm: Gemm
    strided: Sequence[bool]
    offsets: Sequence[tuple[int, ...]]
    epilogue: Node | None = None


def product(node: Node) -> Product | None:
    """Return the calls of cuBLAS for a matrix product; None if cuBLAS does not support the node."""
    return library_product(node, (Matmul,), TYPES)


def ways(node: Node, strides: Sequence[Shape], exactness: Exactness) -> list[CublasWay]:
    """Return the ways to compute a node whose inputs have these strides in bytes, best first."""
    found = product(node)
    if found is None:
        return []
    bare = _plain_way(node, strides, exactness.tf32)
    epilogue = epilogue_of(node, found)
    if epilogue is None:
        return [bare]
    unfused = dataclasses.replace(bare, label="unfused ", epilogue=epilogue)
    relu = isinstance(found.activation, Relu)
    if found.activation is not None and not (relu and exactness.fast_math):
        return [unfused]
    gemm = dataclasses.replace(bare.gemm, bias=len(node.inputs) > 2, relu=relu)
    return [dataclasses.replace(bare, gemm=gemm), unfused]


def _plain_way(node: Node, strides: Sequence[Shape], tf32: bool) -> CublasWay:
    """Return the calls for the product alone, with as few copies of operands as possible.

    A call has one batch axis.  Further axes are merged with it if their strides allow, else each of
    their elements is a call.
    """
    x, y = (operand.spec for operand in node.inputs[:2])
    (m, k), n, itemsize = x.shape[-2:], y.shape[-1], node.dtype.itemsize
    for kept in itertools.product((True, False), repeat=2):
        views = zip((x, y), strides, kept, strict=False)
        steps = [_steps(s if keep else spec.strides, spec) for spec, s, keep in views]
        steps.append(_steps(node.spec.strides, node.spec))
        lying = [
            _leading_dimension(*s.shape[-2:], *own[-2:])
            for s, own in zip((x, y), steps, strict=False)
        ]
        if None in lying or min(map(min, steps)) < 0:
            continue
        # As many steps along the axes of batches as the result has.
        outer = ((0,) * (node.ndim - len(own)) + own[:-2] for own in steps)
        axes = collapse(zip(node.shape[:-2], zip(*outer, strict=True), strict=True))
        if len(axes) < 2 or not any(kept):
            break
    (x_lead, x_turned), (y_lead, y_turned) = filter(None, lying)
    count, batch, starts = _calls(axes)
    operands = (
        Matrices(*((k, n) if y_turned else (n, k)), y_lead, batch[1]),
        Matrices(*((m, k) if x_turned else (k, m)), x_lead, batch[0]),
        Matrices(n, m, n, batch[2]),
    )
    offsets = [(y * itemsize, x * itemsize, z * itemsize) for x, y, z in starts]
    gemm = Gemm(
        node.dtype.name,
        operands,
        (y_turned, x_turned),
        count,
        tf32=tf32 and node.dtype.name == "float32",
        alignment=math.gcd(LOAD_ALIGNMENT, *itertools.chain.from_iterable(offsets)),
    )
    return CublasWay("", gemm, kept, offsets)


def _calls(axes: Axes) -> tuple[int, Ints, list[list[int]]]:
    """Return extent and steps of the longest axis, and the offsets of calls along the others."""
    longest = count, batch = max(axes, default=(1, (0, 0, 0)))
    others = [axis for axis in axes if axis != longest]
    part = next(i for i in range(min(count, MAX_BATCH), 0, -1) if count % i == 0)
    if part < count:
        others.append((count // part, tuple(part * step for step in batch)))
    starts = [[0, 0, 0]]
    for extent, steps in others:
        starts = [
            [at + i * step for at, step in zip(start, steps, strict=True)]
            for start in starts
            for i in range(extent)
        ]
    return part, batch, starts


def _steps(strides: Shape, spec: Spec) -> Shape:
    """Return strides in elements, with 0 along axes of one element."""
    sizes = zip(spec.shape, strides, strict=True)
    return tuple(stride // spec.dtype.itemsize if n > 1 else 0 for n, stride in sizes)


def _leading_dimension(rows: int, columns: int, down: int, across: int) -> tuple[int, bool] | None:
    """Return the leading dimension of a matrix, and whether it is column-major.

    None if neither its rows nor its columns are contiguous.
    """
    if (across == 1 or columns == 1) and (down >= columns or rows == 1) and down != 1:
        return (down or columns), False
    if (down == 1 or rows == 1) and (across >= rows or columns == 1):
        return (across or rows), True
    return None


def candidates(arrangement: Arrangement, ordinal: int, exactness: Exactness) -> Iterator[Candidate]:
    """Yield cuBLAS's candidates for a node; the library's own choice is first."""
    node = arrangement.node
    for way in ways(node, arrangement.strides, exactness):
        precision = "tf32" if way.gemm.tf32 else way.gemm.dtype
        named: dict[str, Algorithm] = {}
        for algorithm in Descriptors(way.gemm).algorithms(cublas.handle(ordinal)):
            named.setdefault(way.label + algorithm.name, algorithm)
        for name, algorithm in named.items():
            make = partial(CublasKernel, node, way, algorithm, ordinal)
            yield Candidate(name, arrangement.layouts, make, precision=precision)


class CublasKernel(LibraryKernel):
    """Calls of an algorithm of cuBLAS, and the launches around them.

    launches  of generated kernels that follow

    The kernel neither allocates nor waits, so its stream may be captured.
    """

    maker = "cublas"
    alignment = LOAD_ALIGNMENT

    def __init__(self, node: Node, way: CublasWay, algorithm: Algorithm, ordinal: int) -> None:
        super().__init__(node, in_place(way.epilogue))
        self.algorithm = way.label + algorithm.name
        self.way = way
        self.strided = (*way.strided, *(False for _ in node.inputs[2:]))
        self.scratch = algorithm.workspace and algorithm.workspace + ALIGNMENT
        self._chosen = algorithm
        self._descriptors = Descriptors(way.gemm)
        self._handle = cublas.handle(ordinal)

    def enqueue(self, inputs: Addresses, outputs: Addresses, scratch: int, stream: int) -> None:
        operands, workspace = (inputs[1], inputs[0], outputs[0]), aligned(scratch)
        for offsets in self.way.offsets:
            addresses = [at + offset for at, offset in zip(operands, offsets, strict=True)]
            addresses += inputs[2:]
            self._descriptors.enqueue(self._chosen, addresses, workspace, self._handle, stream)
