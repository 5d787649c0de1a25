"""The problems of cuDNN that compute a node, and the kernels that run them.

A node's operands need not have the layout that cuDNN reads best: weights are [k, c, r, s] in the
graph, and the first convolution of a network reads images of 3 channels, whose pixels no wide load
can fetch.  Those operands are copied to and from scratch memory, with zeros for missing channels.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import cudnn

from minigraph.autotune.candidate import Candidate
from minigraph.autotune.measurement import KernelRecipe
from minigraph.devices.cuda.channels import VECTOR, channel_copy
from minigraph.devices.cuda.cudnn_graph import (
    FLOATS,
    ITEMSIZE,
    CudnnProblem,
    Tensor,
    channels_last,
    contiguous,
)
from minigraph.devices.cuda.cudnn_plan import Catalogue, CudnnPlan, replay
from minigraph.devices.cuda.driver import ALIGNMENT, READABLE, aligned
from minigraph.devices.cuda.kernel import cuda_kernel
from minigraph.devices.cuda.launches import Launch
from minigraph.devices.problem import (
    MATRIX,
    ROLES,
    TRANSPOSED,
    Arrangement,
    Product,
    order,
    product_of,
    strides_in,
)
from minigraph.devices.reference import NumpyKernel
from minigraph.errors import GraphError
from minigraph.graph import Array, Graph, Node, Op, Shape, Spec, input
from minigraph.jit.fused import Fused
from minigraph.ops.activation import Relu
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import Layout, unpacked
from minigraph.ops.matmul import Matmul
from minigraph.platform import forks
from minigraph.program import Kernel

# All functions of a device share a handle, which works on the stream that was set last: between
# that and the plan nobody else may come.
_handle_in_use = forks.lock()
KINDS: dict[type[Op], str] = {
    Conv2d: "fprop",
    Conv2dBackwardData: "dgrad",
    Conv2dBackwardWeights: "wgrad",
}


@dataclass(frozen=True, eq=False)
class CudnnWay:
    """A problem of cuDNN's, and what has to be done around it to make it a node.

    label     how the names of its candidates begin
    inputs    the node's operands as they lie, in the axes of the problem
    output    likewise
    strided   which of the first two inputs may be views of a kind that it has been made for
    epilogue  what a generated kernel computes afterwards in place: a node of the result, and of the
              bias, if that is not the problem's
    """

    label: str
    problem: CudnnProblem
    inputs: tuple[Tensor, ...]
    output: Tensor
    strided: tuple[bool, bool] = (False, False)
    epilogue: Node | None = None

    def unfused(self, epilogue: Node) -> CudnnWay:
        """Return the same with nothing but the product left to cuDNN."""
        return dataclasses.replace(
            self,
            label=f"unfused {self.label}",
            problem=self.problem.bare,
            inputs=self.inputs[:2],
            epilogue=epilogue,
        )


class Exactness(NamedTuple):
    """What cuDNN is allowed to do.

    tf32       products of float32 may be rounded to tf32
    fast_math  a relu may make 0 of NaN, as cuDNN's does
    """

    tf32: bool = False
    fast_math: bool = False


def product(node: Node) -> Product | None:
    """Return what a node is made of, or None if cuDNN has no problem for it."""
    made = product_of(node)
    if made is None:
        return None
    specs = (*(x.spec for x in node.inputs), node.spec)
    fits = all(s.size and s.dtype == node.dtype for s in specs)
    # Lanes are all the channels or none: blocks of some of them are nothing to cuDNN.
    operands = zip(made.lanes, (*specs[:2], node.spec), strict=True)
    fits &= all(n == 1 or s.shape[1] == 1 for n, s in operands)
    return made if fits and node.dtype.name in FLOATS else None


def ways(node: Node, strides: Sequence[Shape], exactness: Exactness) -> list[CudnnWay]:
    """Return the ways to compute a node whose inputs have these strides in bytes, best first."""
    found = product(node)
    if found is None:
        return []
    relu = isinstance(found.activation, Relu)
    if isinstance(found.op, Matmul):
        direct = _matmul(node, strides, relu, exactness.tf32)
        whole = [direct, *_as_convolution(direct)]
    else:
        whole = [_convolution(node, found, relu, exactness.tf32)]
    epilogue = _epilogue(node, found)
    if epilogue is None:
        return whole
    unfused = [way.unfused(epilogue) for way in whole]
    fusible = found.activation is None or (relu and exactness.fast_math)
    # cuDNN adds nothing to gradients, which a product may be for it.
    fused = [way for way in whole if way.problem.kind in ("fprop", "matmul")] if fusible else []
    return fused + unfused


def _epilogue(node: Node, found: Product) -> Node | None:
    """Return what follows the product of a node: of its result and its bias, as they lie."""
    y = input("y", node.shape, node.dtype)
    operands, result = [y], y
    if len(node.inputs) > 2:
        shape = node.shape[-1:]
        if not isinstance(found.op, Matmul):
            (k,) = node.inputs[2].shape
            shape = (k // node.shape[4], 1, 1, node.shape[4]) if node.ndim == 5 else (k, 1, 1)
        operands.append(input("bias", shape, node.dtype))
        result = y + operands[1]
    if found.activation is not None:
        result = found.activation(result)
    return None if result is y else Fused(Graph(tuple(operands), (result,)))(*operands)


# ---------------------------------------------------------------- convolutions


def _convolution(node: Node, found: Product, relu: bool, tf32: bool) -> CudnnWay:
    op: Any = found.op
    kind, roles = KINDS[type(op)], ROLES[type(op)]
    conv = op if isinstance(op, Conv2d) else op.conv
    operands = [*(x.spec for x in node.inputs[:2]), node.spec]
    dtype = node.dtype.name
    shapes = [
        unpacked(s.shape) if n > 1 else s.shape for s, n in zip(operands, found.lanes, strict=True)
    ]
    last = max(found.lanes) > 1
    lie = channels_last if last else contiguous
    own, wanted = [], []
    for shape, role, lanes in zip(shapes, roles, found.lanes, strict=True):
        own.append((channels_last if lanes > 1 else contiguous)(shape, dtype))
        wider = last and conv.groups == 1 and role != "y"
        wanted.append(lie(_wider(shape, dtype) if wider else shape, dtype))
    bias = tuple(channels_last((1, *x.shape, 1, 1), dtype) for x in node.inputs[2:])
    problem = CudnnProblem(
        kind,
        (*wanted[:2], *bias),
        wanted[2],
        conv.stride,
        conv.padding,
        conv.dilation,
        bias=bool(bias),
        relu=relu,
        tf32=tf32,
    )
    return CudnnWay("", problem, (*own[:2], *bias), own[2])


def _wider(shape: Shape, dtype: str) -> Shape:
    """The shape with as many channels more as fill the widest loads."""
    n, c, h, w = shape
    step = VECTOR // ITEMSIZE[dtype]
    return n, math.ceil(c / step) * step, h, w


# ---------------------------------------------------------------- matrix products


def _matmul(node: Node, strides: Sequence[Shape], relu: bool, tf32: bool) -> CudnnWay:
    rank = max(3, node.ndim)
    specs = [x.spec for x in node.inputs]
    orders = [order(x.shape, s, x.dtype.itemsize) for x, s in zip(specs[:2], strides, strict=False)]
    inputs = (
        *(_matrix(x, rank, how == TRANSPOSED) for x, how in zip(specs[:2], orders, strict=True)),
        *(_matrix(bias, rank) for bias in specs[2:]),
    )
    output = _matrix(node.spec, rank)
    problem = CudnnProblem("matmul", inputs, output, bias=len(specs) > 2, relu=relu, tf32=tf32)
    return CudnnWay("", problem, inputs, output, (bool(orders[0]), bool(orders[1])))


def _matrix(x: Spec, rank: int, transposed: bool = False) -> Tensor:
    """Matrices, or a vector, with so many axes, without gaps in memory.

    A view's own stride along an axis of one element may be anything, and says nothing.
    """
    lead = (1,) * (rank - len(x.shape))
    strides = strides_in(TRANSPOSED if transposed else MATRIX, x)
    steps = [step // x.dtype.itemsize for step in strides]
    return Tensor((*lead, *x.shape), (*(x.size for _ in lead), *steps), x.dtype.name)


def _as_convolution(way: CudnnWay) -> list[CudnnWay]:
    """The product of two matrices as a convolution of images of one pixel, if it can be one.

    A way to plain float32 where all engines for products have tensor cores only.
    """
    problem = way.problem
    x, y = problem.inputs[:2]
    if len(x.shape) > 3 or x.shape[0] != 1 or y.shape[0] != 1:
        return []
    (m, k), n, dtype = x.shape[1:], y.shape[2], problem.dtype
    x_order, y_order = (order(t.shape, t.strides, 1) for t in (x, y))
    shapes: dict[tuple[Layout | None, Layout | None], tuple[str, Shape, Shape]] = {
        (MATRIX, TRANSPOSED): ("fprop", (m, k), (n, k)),
        (MATRIX, MATRIX): ("dgrad", (m, k), (k, n)),
        (TRANSPOSED, MATRIX): ("wgrad", (k, m), (k, n)),
    }
    if (x_order, y_order) not in shapes:
        return []
    kind, *inputs = shapes[x_order, y_order]
    images = [channels_last((*shape, 1, 1), dtype) for shape in inputs]
    output = channels_last((m, n, 1, 1), dtype)
    bias = [channels_last((1, n, 1, 1), dtype)] if problem.bias else []
    whole = dataclasses.replace(problem, kind=kind, inputs=(*images, *bias), output=output)
    return [CudnnWay("convolution ", whole, whole.inputs, output, way.strided)]


# ---------------------------------------------------------------- running


def candidates(
    arrangement: Arrangement, catalogue: Catalogue, exactness: Exactness
) -> Iterator[Candidate]:
    """Yield cuDNN's candidates for a node; the library's own choice is first."""
    for way in ways(arrangement.node, arrangement.strides, exactness):
        for plan in catalogue.plans(way.problem):
            yield Candidate(
                way.label + plan.name,
                arrangement.layouts,
                functools.partial(_build_kernel, arrangement.node, way, plan, catalogue.handle),
                plan.deterministic,
                plan.precision,
                recipe=KernelRecipe(way.label, plan.engine, plan.knobs),
            )


def _build_kernel(node: Node, way: CudnnWay, plan: CudnnPlan, handle: Any) -> CudnnKernel:
    return CudnnKernel(node, way, plan.build(), handle)


def kernel_of_recipe(
    arrangement: Arrangement, recipe: KernelRecipe, handle: Any, exactness: Exactness
) -> CudnnKernel:
    """Return the kernel of a candidate's recipe; GraphError where cuDNN has it no longer."""
    for way in ways(arrangement.node, arrangement.strides, exactness):
        if way.label == recipe.way:
            plan = replay(way.problem, handle, recipe.engine, recipe.knobs)
            return CudnnKernel(arrangement.node, way, plan, handle)
    raise GraphError(f"cuDNN has no way {recipe.way!r} to compute {arrangement.node.op.name}")


class CudnnKernel(Kernel):
    """A plan of cuDNN's, compiled, with what has to be done around it.

    launches  copies of operands that lie amiss, then what follows

    Nothing in it allocates or waits, so its stream may be captured meanwhile.
    """

    maker = "cudnn"
    alignment = READABLE

    def __init__(self, node: Node, way: CudnnWay, plan: CudnnPlan, handle: Any) -> None:
        self.algorithm = way.label + plan.name
        self.node = node
        self.plan = plan
        self.way = way
        self.handle = handle
        self.strided = (*way.strided, *(False for _ in node.inputs[2:]))
        problem, last = way.problem, len(way.inputs)
        pairs = zip((*way.inputs, way.output), (*problem.inputs, problem.output), strict=True)
        self._copied: dict[int, int] = {}  # operands that cuDNN has in the scratch memory: offsets
        self.scratch = aligned(plan.workspace)
        self.launches: list[Launch] = []
        for i, (own, wanted) in enumerate(pairs):
            if own.lies_as(wanted):
                continue
            self._copied[i] = self.scratch
            self.scratch += aligned(wanted.nbytes)
            between = (wanted, own) if i == last else (own, wanted)
            words = functools.partial(self._copied_between, i)
            self.launches.append(channel_copy(*between, words, early=i < last))
        self.scratch += ALIGNMENT * (self.scratch > 0)  # for where it may begin
        self.launches += [] if way.epilogue is None else _in_place(way.epilogue)
        self.sources = [launch.source for launch in self.launches]

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        """Compute in NumPy."""
        NumpyKernel(self.node).run(inputs, outputs, scratch)

    def _copied_between(
        self, i: int, inputs: Sequence[int], outputs: Sequence[int], scratch: int
    ) -> list[int]:
        """Return from where to where operand `i` is copied."""
        place = aligned(scratch) + self._copied[i]
        return [place, outputs[0]] if i == len(self.way.inputs) else [inputs[i], place]

    def enqueue(
        self, inputs: Sequence[int], outputs: Sequence[int], scratch: int, stream: int
    ) -> None:
        way, graph = self.way, self.plan.graph
        own = [*inputs[: len(way.inputs)], outputs[0]]
        scratch = aligned(scratch)
        places = [scratch + self._copied[i] if i in self._copied else x for i, x in enumerate(own)]
        with _handle_in_use:
            cudnn.set_stream(self.handle, stream)
            addresses = dict(zip((*graph.inputs, *graph.outputs), places, strict=True))
            self.plan.execute(addresses, scratch, self.handle)


def _in_place(epilogue: Node) -> list[Launch]:
    """Return the launches of a node of a kernel's result, which they change, and of its bias."""
    made = cuda_kernel(epilogue, [x.spec.strides for x in epilogue.inputs])
    assert made is not None and made.may_overwrite(0) and not made.scratch

    def of_the_kernel(launch: Launch) -> Launch:
        def words(inputs: Sequence[int], outputs: Sequence[int], scratch: int) -> list[int]:
            return launch.words([outputs[0], *inputs[2:]], outputs, scratch)

        return dataclasses.replace(launch, words=words)

    return [of_the_kernel(launch) for launch in made.launches]
