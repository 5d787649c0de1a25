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
from minigraph.devices.cuda.cublas import TYPES, Descriptors, Gemm, HeuristicResult, Matrices
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
    """Calls of cuBLAS that compute a node, and the launches that follow them.

    label     prefix of its candidates' names
    strided   for each of the first two inputs, whether it may be a view with the given strides
    offsets   for each call, the bytes from the node's operands y, x and z to those of the call
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
    parts = product(node)
    if parts is None:
        return []
    plain = _plain_way(node, strides, exactness.tf32)
    epilogue = epilogue_of(node, parts)
    if epilogue is None:
        return [plain]
    unfused = dataclasses.replace(plain, label="unfused ", epilogue=epilogue)
    relu = isinstance(parts.activation, Relu)
    if parts.activation is not None and not (relu and exactness.fast_math):
        return [unfused]
    gemm = dataclasses.replace(plain.gemm, bias=len(node.inputs) > 2, relu=relu)
    return [dataclasses.replace(plain, gemm=gemm), unfused]


def _plain_way(node: Node, strides: Sequence[Shape], tf32: bool) -> CublasWay:
    """Return the calls for the product alone, with as few copies of operands as possible.

    A call has one batch axis.  Other batch axes are merged with it if their strides allow that;
    otherwise each of their elements takes a call.
    """
    x, y = (operand.spec for operand in node.inputs[:2])
    (m, k), n, itemsize = x.shape[-2:], y.shape[-1], node.dtype.itemsize
    for strided in itertools.product((True, False), repeat=2):
        views = zip((x, y), strides, strided, strict=False)
        steps = [_steps(s if is_view else spec.strides, spec) for spec, s, is_view in views]
        steps.append(_steps(node.spec.strides, node.spec))
        pairs = zip((x, y), steps, strict=False)
        leading = [_leading_dimension(*spec.shape[-2:], *step[-2:]) for spec, step in pairs]
        if None in leading or min(map(min, steps)) < 0:
            continue
        # An operand with fewer batch axes than the result is broadcast along the others.
        outer = ((0,) * (node.ndim - len(step)) + step[:-2] for step in steps)
        axes = collapse(zip(node.shape[:-2], zip(*outer, strict=True), strict=True))
        if len(axes) < 2 or not any(strided):
            break
    (x_lead, x_transposed), (y_lead, y_transposed) = filter(None, leading)
    count, batch_steps, starts = _calls(axes)
    operands = (
        Matrices(*((k, n) if y_transposed else (n, k)), y_lead, batch_steps[1]),
        Matrices(*((m, k) if x_transposed else (k, m)), x_lead, batch_steps[0]),
        Matrices(n, m, n, batch_steps[2]),
    )
    offsets = [(y * itemsize, x * itemsize, z * itemsize) for x, y, z in starts]
    gemm = Gemm(
        node.dtype.name,
        operands,
        (y_transposed, x_transposed),
        count,
        tf32=tf32 and node.dtype.name == "float32",
        alignment=math.gcd(LOAD_ALIGNMENT, *itertools.chain.from_iterable(offsets)),
    )
    return CublasWay("", gemm, strided, offsets)


def _calls(axes: Axes) -> tuple[int, Ints, list[list[int]]]:
    """Return the batch axis, its extent and steps, and the offsets of the calls.

    The batch axis is the longest axis.  An extent above MAX_BATCH is split over several calls.
    """
    longest = count, batch_steps = max(axes, default=(1, (0, 0, 0)))
    others = [axis for axis in axes if axis != longest]
    batch = next(i for i in range(min(count, MAX_BATCH), 0, -1) if count % i == 0)
    if batch < count:
        others.append((count // batch, tuple(batch * step for step in batch_steps)))
    offsets = [[0, 0, 0]]
    for extent, steps in others:
        offsets = [
            [offset + i * step for offset, step in zip(operands, steps, strict=True)]
            for operands in offsets
            for i in range(extent)
        ]
    return batch, batch_steps, offsets


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
        named: dict[str, HeuristicResult] = {}
        for algorithm in Descriptors(way.gemm).algorithms(cublas.handle(ordinal)):
            named.setdefault(way.label + algorithm.name, algorithm)
        for name, algorithm in named.items():
            make = partial(CublasKernel, node, way, algorithm, ordinal)
            yield Candidate(name, arrangement.layouts, make, precision=precision)


class CublasKernel(LibraryKernel):
    """Calls of an algorithm of cuBLAS, and the launches of the epilogue that follow them.

    The kernel neither allocates nor waits, so its stream may be captured.
    """

    maker = "cublas"
    alignment = LOAD_ALIGNMENT

    def __init__(
        self, node: Node, way: CublasWay, algorithm: HeuristicResult, ordinal: int
    ) -> None:
        super().__init__(node, in_place(way.epilogue))
        self.algorithm = way.label + algorithm.name
        self.way = way
        self.strided = (*way.strided, *(False for _ in node.inputs[2:]))
        self.scratch = algorithm.workspace and algorithm.workspace + ALIGNMENT
        self._algorithm = algorithm
        self._descriptors = Descriptors(way.gemm)
        self._handle = cublas.handle(ordinal)

    def enqueue(self, inputs: Addresses, outputs: Addresses, scratch: int, stream: int) -> None:
        operands, workspace = (inputs[1], inputs[0], outputs[0]), aligned(scratch)
        for offsets in self.way.offsets:
            pairs = zip(operands, offsets, strict=True)
            addresses = [address + offset for address, offset in pairs]
            addresses += inputs[2:]
            self._descriptors.enqueue(self._algorithm, addresses, workspace, self._handle, stream)
