"""The problems of cuDNN that compute a node, and the kernels that run them.

A node's operands may lack the layout that cuDNN reads best: weights are [k, c, r, s] in the graph,
and the first convolution of a network reads images of 3 channels, whose pixels no wide load can
fetch.  Such operands are copied to and from scratch memory, with zeros for missing channels.

A strided convolution of few channels is also one without stride, of images whose channels are the
pixels of blocks with the stride's size ("space to depth", as in MLPerf's ResNet-50): along an axis,
tap i has the weights b i ... b i + b - 1, and zeros beyond the last.  If that gives too few
channels for a tile of cuDNN's kernels, blocks are as long as the window along one axis, or both,
and overlap.  NaN or infinity in a pixel then also reaches results in the next row or column, by way
of the zero weights, as with Winograd's tiles.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cudnn

from minigraph.autotune.candidate import Candidate
from minigraph.autotune.measurement import KernelRecipe
from minigraph.devices.cuda.channels import SINGLE_PIXELS, VECTOR_BYTES, Blocks, channel_copy
from minigraph.devices.cuda.cudnn_graph import (
    ITEMSIZE,
    CudnnProblem,
    Tensor,
    channels_last,
    contiguous,
)
from minigraph.devices.cuda.cudnn_plan import Catalogue, CudnnPlan, replay
from minigraph.devices.cuda.driver import ALIGNMENT, LOAD_ALIGNMENT, aligned
from minigraph.devices.cuda.kernel import Addresses, Launch, LibraryKernel
from minigraph.devices.cuda.kernels import Exactness, epilogue_of, in_place, library_product
from minigraph.devices.problem import (
    FEW_CHANNELS,
    ROLES,
    Arrangement,
    Product,
    conv_of,
    plain_shapes,
)
from minigraph.errors import GraphError
from minigraph.graph import Node, Op, Shape
from minigraph.ops.activation import Relu
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.window import Pair
from minigraph.platform import forks

# All functions of a device share a handle, which works on the stream that was set last, so a thread
# holds this lock from setting the stream until it has enqueued its plan.
_handle_in_use = forks.lock()
KINDS: dict[type[Op], str] = {
    Conv2d: "fprop",
    Conv2dBackwardData: "dgrad",
    Conv2dBackwardWeights: "wgrad",
}
POINTWISE = (1, 1)
CHANNEL_MULTIPLE = 16  # of which cuDNN's fastest kernels of plain float32 need a multiple
# Rough figures of an H200, of which only the ratio of work to memory traffic matters.
TILE_BYTES = 64  # bytes: as many channels of a tap, or a multiple, take as long as fewer
FLOPS_PER_BYTE = {"small": 100, "tf32": 50, "plain": 10}  # done while memory moves one byte


@dataclass(frozen=True, eq=False)
class CudnnWay:
    """A cuDNN problem that computes a node, and the launches around it.

    label     prefix of its candidates' names
    inputs    layouts of the node's operands, in the axes of the problem
    output    layout of the node's result, in the axes of the problem
    blocks    of the first two operands and of the output, whose pixels become channels in copies
    epilogue  node that a generated kernel computes afterwards, in place, from the result and, if
              the problem lacks it, the bias
    """

    label: str
    problem: CudnnProblem
    inputs: tuple[Tensor, ...]
    output: Tensor
    blocks: tuple[Blocks, ...]
    epilogue: Node | None = None


def product(node: Node) -> Product | None:
    """Return cuDNN's problem for a convolution or a gradient, or None if it has none."""
    made = library_product(node, KINDS, ITEMSIZE)
    if made is None:
        return None
    # Lanes are all the channels or none: blocks of some of them are nothing to cuDNN.
    operands = zip(made.lanes, (*node.inputs[:2], node), strict=True)
    return made if all(n == 1 or x.shape[1] == 1 for n, x in operands) else None


def ways(node: Node, exactness: Exactness) -> list[CudnnWay]:
    """Return the ways to compute a node, best first."""
    found = product(node)
    if found is None:
        return []
    relu = isinstance(found.activation, Relu)
    sizes = _block_sizes(node, found, exactness.tf32)
    epilogue = epilogue_of(node, found)
    # cuDNN adds nothing to gradients.
    fusible = type(found.op) is Conv2d
    fusible &= found.activation is None or (relu and exactness.fast_math)
    made = []
    for way in (_convolution(node, found, size, relu, exactness.tf32) for size in sizes):
        if epilogue is None or fusible:
            made.append(way)
        if epilogue is not None:
            label, problem, inputs = (
                f"unfused {way.label}",
                way.problem.without_epilogue,
                way.inputs[:2],
            )
            made.append(CudnnWay(label, problem, inputs, way.output, way.blocks, epilogue))
    return made


# ---------------------------------------------------------------- convolutions


def _shapes(node: Node, found: Product) -> dict[str, Shape]:
    """The shapes of images before (x) and behind (y), and of weights."""
    inputs, y = plain_shapes(node, found.lanes)
    return dict(zip(ROLES[type(found.op)], (*inputs[:2], y), strict=True))


def _block_sizes(node: Node, found: Product, tf32: bool) -> list[Pair]:
    """Return the sizes of blocks whose pixels may become channels, the expected fastest first.

    Blocks of one pixel leave the images unchanged.  Each side of the others is that of the stride
    or of the window; the latter overlap, which gives more channels and fewer taps.
    """
    conv, shapes, dtype = conv_of(found.op), _shapes(node, found), node.dtype.name
    c, *window = shapes["w"][1:]
    simple = conv.groups == 1 and conv.dilation == (1, 1) and c <= FEW_CHANNELS
    helps = max(conv.stride) > 1 and max(window) > 1
    if not (simple and helps) or isinstance(found.op, Conv2dBackwardData):
        return [POINTWISE]
    rate = FLOPS_PER_BYTE["small" if ITEMSIZE[dtype] < 4 else "tf32" if tf32 else "plain"]

    def cost(size: Pair) -> int:
        x, w = (_with_padded_channels(each, dtype, size) for each in _blocked_shapes(shapes, size))
        channels = math.ceil(w[1] * ITEMSIZE[dtype] / TILE_BYTES) * TILE_BYTES // ITEMSIZE[dtype]
        work = 2 * math.prod(shapes["y"]) * channels * math.prod(w[2:])
        return work + 2 * math.prod(x) * ITEMSIZE[dtype] * rate

    high, wide = ((min(r, step), r) for r, step in zip(window, conv.stride, strict=True))
    blocks = min([(h, w) for h in high for w in wide if (h, w) != POINTWISE], key=cost)
    return sorted([blocks, POINTWISE], key=cost)


def _blocked_shapes(shapes: Mapping[str, Shape], size: Pair) -> tuple[Shape, Shape]:
    """The shapes of images and weights whose channels are the pixels of blocks."""
    (n, *_), (k, c, *window), y = (shapes[role] for role in "xwy")
    if size == POINTWISE:
        return shapes["x"], shapes["w"]
    taps = [math.ceil(r / side) for r, side in zip(window, size, strict=True)]
    pixels = (m + r - 1 for m, r in zip(y[2:], taps, strict=True))
    return (n, c * math.prod(size), *pixels), (k, c * math.prod(size), *taps)


def _convolution(node: Node, found: Product, size: Pair, relu: bool, tf32: bool) -> CudnnWay:
    """The way whose channels are the pixels of blocks of this size."""
    conv, dtype, roles = conv_of(found.op), node.dtype.name, ROLES[type(found.op)]
    plain = _shapes(node, found)
    shapes, blocks = dict(plain), dict.fromkeys(roles, SINGLE_PIXELS)
    steps = conv.stride, conv.padding, conv.dilation
    if size != POINTWISE:
        shapes["x"], shapes["w"] = _blocked_shapes(plain, size)
        blocks |= {"x": Blocks(size, conv.stride, conv.padding), "w": Blocks(size, size)}
        steps = (1, 1), (0, 0), (1, 1)
    last = max(found.lanes) > 1
    lie = channels_last if last else contiguous
    own, wanted = [], []
    for role, lanes in zip(roles, found.lanes, strict=True):
        own.append((channels_last if lanes > 1 else contiguous)(plain[role], dtype))
        wider = conv.groups == 1 and role != "y" and (last or size != POINTWISE)
        shape = _with_padded_channels(shapes[role], dtype, size) if wider else shapes[role]
        wanted.append(lie(shape, dtype))
    bias = tuple(channels_last((1, *x.shape, 1, 1), dtype) for x in node.inputs[2:])
    problem = CudnnProblem(
        KINDS[type(found.op)],
        (*wanted[:2], *bias),
        wanted[2],
        *steps,
        relu=relu,
        tf32=tf32,
    )
    return CudnnWay(
        "" if size == POINTWISE else "space to depth {} x {} ".format(*size),
        problem,
        (*own[:2], *bias),
        own[2],
        tuple(blocks[role] for role in roles),
    )


def _with_padded_channels(shape: Shape, dtype: str, size: Pair) -> Shape:
    """The shape with as many channels more as fill the widest loads, or cuDNN's best kernels."""
    n, c, h, w = shape
    step = VECTOR_BYTES // ITEMSIZE[dtype] if size == POINTWISE else CHANNEL_MULTIPLE
    return n, math.ceil(c / step) * step, h, w


# ---------------------------------------------------------------- running


def candidates(
    arrangement: Arrangement, catalogue: Catalogue, exactness: Exactness
) -> Iterator[Candidate]:
    """Yield cuDNN's candidates for a node; the library's own choice is first."""
    for way in ways(arrangement.node, exactness):
        for plan in catalogue.plans(way.problem):
            yield Candidate(
                way.label + plan.name,
                arrangement.layouts,
                functools.partial(CudnnKernel, arrangement.node, way, plan, catalogue.handle),
                plan.deterministic,
                plan.precision,
                recipe=KernelRecipe(way.label, plan.engine, plan.knobs),
            )


def kernel_of_recipe(
    arrangement: Arrangement, recipe: KernelRecipe, handle: Any, exactness: Exactness
) -> CudnnKernel:
    """Return the kernel of a recipe; raise GraphError if cuDNN lacks the engine now."""
    for way in ways(arrangement.node, exactness):
        if way.label == recipe.way:
            plan = replay(way.problem, handle, recipe.engine, recipe.knobs)
            return CudnnKernel(arrangement.node, way, plan, handle)
    raise GraphError(f"cuDNN has no way {recipe.way!r} to compute {arrangement.node.op.name}")


class CudnnKernel(LibraryKernel):
    """A compiled plan of cuDNN, and the launches around it.

    launches  copies of operands to cuDNN's layouts, then the epilogue

    The kernel neither allocates nor waits, so its stream may be captured.
    """

    maker = "cudnn"
    alignment = LOAD_ALIGNMENT

    def __init__(self, node: Node, way: CudnnWay, plan: CudnnPlan, handle: Any) -> None:
        plan.build()
        self.algorithm = way.label + plan.name
        self.way = way
        self.plan = plan
        self.handle = handle
        problem, last = way.problem, len(way.inputs)
        pairs = zip((*way.inputs, way.output), (*problem.inputs, problem.output), strict=True)
        self._copied: dict[int, int] = {}  # operands that cuDNN has in the scratch memory: offsets
        self.scratch = aligned(plan.workspace)
        launches: list[Launch] = []
        for i, (own, wanted) in enumerate(pairs):
            if own.has_layout_of(wanted):
                continue
            self._copied[i] = self.scratch
            self.scratch += aligned(wanted.nbytes)
            source, target = (wanted, own) if i == last else (own, wanted)
            given = None if i == last else i
            words = functools.partial(_copy_operands, given, self._copied[i])
            blocks = way.blocks[2 if i == last else i]
            launches.append(channel_copy(source, target, words, blocks))
            self.library_position += i < last
        self.scratch += ALIGNMENT * (self.scratch > 0)  # for the alignment of its beginning
        super().__init__(node, [*launches, *in_place(way.epilogue)])

    def enqueue(self, inputs: Addresses, outputs: Addresses, scratch: int, stream: int) -> None:
        own, scratch = [*inputs[: len(self.way.inputs)], outputs[0]], aligned(scratch)
        places = [scratch + self._copied[i] if i in self._copied else x for i, x in enumerate(own)]
        with _handle_in_use:
            cudnn.set_stream(self.handle, stream)
            at, plan = dict(enumerate(places, 1)), self.plan
            plan.graph.execute_plan_at_index(at, scratch, plan.index, self.handle)


def _copy_operands(
    given: int | None, offset: int, inputs: Addresses, outputs: Addresses, scratch: int
) -> list[int]:
    """Return the source and target of the copy of an input, or, for None, of the output."""
    place = aligned(scratch) + offset
    return [place, outputs[0]] if given is None else [inputs[given], place]
