"""The problems of cuDNN that compute a node, and the kernels that run them.

A node's operands may not have the layout that cuDNN reads fastest: weights are [k, c, r, s] in the
graph, and the first convolution of a network reads images of 3 channels, whose pixels do not fit
wide loads.  These operands are copied to and from scratch memory, with zeros for missing channels.

A strided convolution of few channels equals a convolution without stride of images whose channels
are the pixels of blocks with the stride's size ("space to depth", as in MLPerf's ResNet-50): along
an axis, tap i has the weights b i ... b i + b - 1, and zeros beyond the last weight.  If that gives
too few channels for a tile of cuDNN's kernels, blocks are as long as the window along one axis or
both, and overlap.  Then the zero weights carry NaN or infinity in a pixel to results in the next
row or column, as with Winograd's tiles.
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

# All functions of a device share a handle, which uses the stream that was set last.  So a thread
# holds this lock while it sets the stream and enqueues its plan.
_handle_in_use = forks.lock()
KINDS: dict[type[Op], str] = {
    Conv2d: "fprop",
    Conv2dBackwardData: "dgrad",
    Conv2dBackwardWeights: "wgrad",
}
POINTWISE = (1, 1)
CHANNEL_MULTIPLE = 16  # cuDNN's fastest kernels of plain float32 need a multiple of it
# Rough figures of an H200; only the ratio of work to memory traffic matters.
TILE_BYTES = 64  # bytes of channels of a tap: fewer channels take as long as a whole tile
FLOPS_PER_BYTE = {"small": 100, "tf32": 50, "plain": 10}  # operations while memory moves one byte


@dataclass(frozen=True, eq=False)
class CudnnWay:
    """A cuDNN problem that computes a node, and the launches around it.

    label     prefix of its candidates' names
    inputs    layouts of the node's operands, in the axes of the problem
    output    layout of the node's result, in the axes of the problem
    blocks    blocks of the first two operands and of the output for `channel_copy`
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
    """Return the parts of a convolution or gradient; None if cuDNN does not support the node."""
    parts = library_product(node, KINDS, ITEMSIZE)
    if parts is None:
        return None
    # cuDNN supports the channels last, but no blocks of some channels.
    operands = zip(parts.lanes, (*node.inputs[:2], node), strict=True)
    return parts if all(n == 1 or x.shape[1] == 1 for n, x in operands) else None


def ways(node: Node, exactness: Exactness) -> list[CudnnWay]:
    """Return the ways to compute a node, best first."""
    parts = product(node)
    if parts is None:
        return []
    relu = isinstance(parts.activation, Relu)
    sizes = _block_sizes(node, parts, exactness.tf32)
    epilogue = epilogue_of(node, parts)
    # cuDNN fuses no epilogue with gradients.
    is_fusible = type(parts.op) is Conv2d
    is_fusible &= parts.activation is None or (relu and exactness.fast_math)
    result = []
    for way in (_convolution(node, parts, size, relu, exactness.tf32) for size in sizes):
        if epilogue is None or is_fusible:
            result.append(way)
        if epilogue is not None:
            label, problem = f"unfused {way.label}", way.problem.without_epilogue
            blocks = way.blocks
            result.append(CudnnWay(label, problem, way.inputs[:2], way.output, blocks, epilogue))
    return result


# ---------------------------------------------------------------- convolutions


def _shapes(node: Node, parts: Product) -> dict[str, Shape]:
    """Return the shapes of the images x and y of the convolution, and of its weights w."""
    inputs, y = plain_shapes(node, parts.lanes)
    return dict(zip(ROLES[type(parts.op)], (*inputs[:2], y), strict=True))


def _block_sizes(node: Node, parts: Product, tf32: bool) -> list[Pair]:
    """Return the sizes of blocks whose pixels may become channels, the expected fastest first.

    Blocks of one pixel leave the images unchanged.  Each side of the other blocks equals that of
    the stride or of the window.  Blocks as long as the window overlap, which gives more channels
    and fewer taps.
    """
    conv, shapes, dtype = conv_of(parts.op), _shapes(node, parts), node.dtype.name
    c, *window = shapes["w"][1:]
    is_simple = conv.groups == 1 and conv.dilation == (1, 1) and c <= FEW_CHANNELS
    is_useful = max(conv.stride) > 1 and max(window) > 1
    if not (is_simple and is_useful) or isinstance(parts.op, Conv2dBackwardData):
        return [POINTWISE]
    rate = FLOPS_PER_BYTE["small" if ITEMSIZE[dtype] < 4 else "tf32" if tf32 else "plain"]

    def cost(size: Pair) -> int:
        x, w = (_with_padded_channels(s, dtype, size) for s in _blocked_shapes(shapes, size))
        channels = math.ceil(w[1] * ITEMSIZE[dtype] / TILE_BYTES) * TILE_BYTES // ITEMSIZE[dtype]
        work = 2 * math.prod(shapes["y"]) * channels * math.prod(w[2:])
        return work + 2 * math.prod(x) * ITEMSIZE[dtype] * rate

    heights, widths = ((min(r, step), r) for r, step in zip(window, conv.stride, strict=True))
    blocks = min([(h, w) for h in heights for w in widths if (h, w) != POINTWISE], key=cost)
    return sorted([blocks, POINTWISE], key=cost)


def _blocked_shapes(shapes: Mapping[str, Shape], size: Pair) -> tuple[Shape, Shape]:
    """Return the shapes of images and weights whose channels are the pixels of blocks."""
    (n, *_), (k, c, *window), y = (shapes[role] for role in "xwy")
    if size == POINTWISE:
        return shapes["x"], shapes["w"]
    taps = [math.ceil(r / side) for r, side in zip(window, size, strict=True)]
    pixels = (m + r - 1 for m, r in zip(y[2:], taps, strict=True))
    return (n, c * math.prod(size), *pixels), (k, c * math.prod(size), *taps)


def _convolution(node: Node, parts: Product, size: Pair, relu: bool, tf32: bool) -> CudnnWay:
    """Return the way whose channels are the pixels of blocks of this size."""
    conv, dtype, roles = conv_of(parts.op), node.dtype.name, ROLES[type(parts.op)]
    plain = _shapes(node, parts)
    shapes, blocks = dict(plain), dict.fromkeys(roles, SINGLE_PIXELS)
    steps = conv.stride, conv.padding, conv.dilation
    if size != POINTWISE:
        shapes["x"], shapes["w"] = _blocked_shapes(plain, size)
        blocks |= {"x": Blocks(size, conv.stride, conv.padding), "w": Blocks(size, size)}
        steps = (1, 1), (0, 0), (1, 1)
    is_last = max(parts.lanes) > 1
    layout = channels_last if is_last else contiguous
    node_tensors, problem_tensors = [], []
    for role, lanes in zip(roles, parts.lanes, strict=True):
        node_tensors.append((channels_last if lanes > 1 else contiguous)(plain[role], dtype))
        is_padded = conv.groups == 1 and role != "y" and (is_last or size != POINTWISE)
        shape = _with_padded_channels(shapes[role], dtype, size) if is_padded else shapes[role]
        problem_tensors.append(layout(shape, dtype))
    bias = tuple(channels_last((1, *x.shape, 1, 1), dtype) for x in node.inputs[2:])
    problem = CudnnProblem(
        KINDS[type(parts.op)],
        (*problem_tensors[:2], *bias),
        problem_tensors[2],
        *steps,
        relu=relu,
        tf32=tf32,
    )
    return CudnnWay(
        "" if size == POINTWISE else "space to depth {} x {} ".format(*size),
        problem,
        (*node_tensors[:2], *bias),
        node_tensors[2],
        tuple(blocks[role] for role in roles),
    )


def _with_padded_channels(shape: Shape, dtype: str, size: Pair) -> Shape:
    """Return the shape with channels added to fill the widest loads, or cuDNN's best kernels."""
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
    """Return the kernel of a recipe; raise GraphError if this cuDNN lacks the engine."""
    for way in ways(arrangement.node, exactness):
        if way.label == recipe.way:
            plan = replay(way.problem, handle, recipe.engine, recipe.knobs)
            return CudnnKernel(arrangement.node, way, plan, handle)
    raise GraphError(f"cuDNN has no method {recipe.way!r} for {arrangement.node.op.name}")


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
        self._copy_offsets: dict[int, int] = {}  # in the scratch memory, of operands with a copy
        self.scratch = aligned(plan.workspace)
        launches: list[Launch] = []
        for i, (ours, theirs) in enumerate(pairs):
            if ours.has_layout_of(theirs):
                continue
            self._copy_offsets[i] = self.scratch
            self.scratch += aligned(theirs.nbytes)
            source, target = (theirs, ours) if i == last else (ours, theirs)
            input_index = None if i == last else i
            words = functools.partial(_copy_operands, input_index, self._copy_offsets[i])
            blocks = way.blocks[2 if i == last else i]
            launches.append(channel_copy(source, target, words, blocks))
            self.library_position += i < last
        self.scratch += ALIGNMENT * (self.scratch > 0)  # to align its beginning
        super().__init__(node, [*launches, *in_place(way.epilogue)])

    def enqueue(self, inputs: Addresses, outputs: Addresses, scratch: int, stream: int) -> None:
        operands, scratch = [*inputs[: len(self.way.inputs)], outputs[0]], aligned(scratch)
        for i, offset in self._copy_offsets.items():
            operands[i] = scratch + offset
        by_uid, plan = dict(enumerate(operands, 1)), self.plan
        with _handle_in_use:
            cudnn.set_stream(self.handle, stream)
            plan.graph.execute_plan_at_index(by_uid, scratch, plan.index, self.handle)


def _copy_operands(
    input_index: int | None, offset: int, inputs: Addresses, outputs: Addresses, scratch: int
) -> list[int]:
    """Return the source and target of the copy of an input; None stands for the output."""
    address = aligned(scratch) + offset
    return [address, outputs[0]] if input_index is None else [inputs[input_index], address]
