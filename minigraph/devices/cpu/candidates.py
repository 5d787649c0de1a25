"""The autotuner's candidates on the CPU: the table CANDIDATES lists their generators."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from minigraph.autotune.candidate import Candidate, Run, Runner, Workbench
from minigraph.devices.cpu import (
    amx,
    compiler,
    converted,
    direct,
    halide_compiler,
    onednn,
    primitives,
    product,
    tiles,
    transposed,
    winograd,
)
from minigraph.devices.cpu.kernel import CpuKernel, KernelRunner, constants_of
from minigraph.devices.cpu.kernels import native_kernel
from minigraph.devices.problem import (
    FEW_CHANNELS,
    ROLES,
    Arrangement,
    Lanes,
    Layouts,
    OpProblem,
    ProblemMaker,
    Product,
    conv_of,
    product_of,
)
from minigraph.errors import GraphError
from minigraph.graph import Node, Shape, Spec
from minigraph.ops.conv import Conv2dBackwardData
from minigraph.ops.layout import Reorder
from minigraph.ops.matmul import Matmul

GENERAL = "jit:"  # of oneDNN's kernels for convolutions of any window and groups
# Rough speeds of one thread.  Their ratios matter: kernels are many times as fast as NumPy, and
# Winograd's algorithm is twice as fast as direct convolution.
BYTES_PER_SECOND = 5e9  # bytes that a copy reads or writes
# Operations of a direct convolution per second, whatever the algorithm.
FLOPS_PER_SECOND = {"winograd": 1.6e11, "direct": 8e10, "tiles": 2.4e11, "numpy": 2e9}
# Time of a convolution in blocks of half a vector, relative to whole vectors.  Depthwise ones,
# which memory bounds, take as long (Zen 4: 32 to 16 channels 1.3, 144 depthwise 0.9 to 1.1).
SHORT_VECTORS = 1.3
MAX_COMMON_PADDING = 6  # oneDNN has all usual convolutions with so much padding
# Seconds for a channel of a pixel that panels and oneDNN's "gemm" copy for a tap, by layout.
GATHER_SECONDS = {"nchw": 7e-10, "others": 1.5e-9}
NUMPY_PENALTY = 1.0  # seconds added to NumPy's estimate, so that it is the last resort

# Measuring pays if a gain of EXPECTED_GAIN of the time in EXPECTED_CALLS calls exceeds the seconds
# for creating (oneDNN) or compiling (C) the rivals.  CALL_SECONDS is the overhead of a call.
MAX_RIVALS, EXPECTED_CALLS, EXPECTED_GAIN = 2, 1000, 0.5
CREATION_SECONDS, COMPILE_SECONDS, CALL_SECONDS = 2e-3, 0.3, 5e-6
# Operations for which `_is_sure` trusts the first candidate: on Zen 5 rivals gained nothing in
# ResNet-18 and ResNet-50, and up to an eighth of a step in AlexNet.
SURE_OPERATIONS = 1e8

# oneDNN's kernels fetch a large row-major matrix more slowly than panels do: 32 rows times 4096 x
# 9216 take 49 ms of one core, panels 40 (Xeon).  Only lanes of AVX-512 were measured.
MIN_PANEL_ROWS, MIN_PANEL_MATRIX, MIN_PANEL_LANES = 8, 1 << 23, 16


def panel_candidates(arrangement: Arrangement, threads: int) -> Iterator[Candidate]:
    """Yield the product of panels: for a convolution of nchw images these are gathered."""
    node, strides, layouts = arrangement
    is_convolution = type(node.op) in ROLES and node.dtype == onednn.F32 and compiler.compiler()
    if is_convolution or _reads_in_panels(arrangement):
        make = native_kernel if is_convolution else product.matmul_kernel
        yield Candidate(product.NAME, layouts, partial(make, node, strides, threads))


# For products and convolutions.  The heuristic chooses the first candidate of all.
CANDIDATES: tuple[Callable[[Arrangement, int], Iterable[Candidate]], ...] = (
    primitives.candidates,
    transposed.candidates,
    tiles.candidates,
    winograd.candidates,
    direct.candidates,
    converted.candidates,
    panel_candidates,
)


class CpuWorkbench(Workbench):
    """The workbench of the CPU.

    on_disk  whether kernels may be read from and kept on disk
    """

    def __init__(self, on_disk: bool) -> None:
        self.on_disk = on_disk

    def compile(self, kernels: Iterable[Runner]) -> None:
        native = (kernel for kernel in kernels if isinstance(kernel, CpuKernel))
        texts = [text for kernel in native for text in kernel.texts]
        if texts:
            halide_compiler.functions(texts, self.on_disk)

    def runner(self, kernel: Runner) -> Run:
        return (
            KernelRunner(kernel, self.on_disk).run if isinstance(kernel, CpuKernel) else kernel.run
        )


class CpuProblems(ProblemMaker):
    """Makes the problems of nodes for the CPU.

    threads    threads of large kernels
    on_disk    whether kernels may be read from and kept on disk
    precision  value of the option
    """

    kind = "onednn"

    def __init__(self, threads: int, on_disk: bool, precision: str = "float32") -> None:
        super().__init__()
        self.threads = threads
        self.allows_bf16x3 = precision == amx.PRECISION
        self.workbench = CpuWorkbench(on_disk)
        self.dtypes = onednn.dtypes() | {onednn.F32}

    def product(self, node: Node) -> Product | None:
        product = product_of(node)
        if product is None:
            return None
        specs = (*(x.spec for x in node.inputs), *node.specs)
        same_dtype = len({s.dtype for s in specs}) == 1 and specs[0].dtype in self.dtypes
        return product if same_dtype and all(s.size for s in specs) else None

    def note(self, node: Node) -> str:
        threads = primitives.threads_for_node(node, self.threads)
        # A kernel converts constant weights only once, so its time differs.
        product = product_of(node)
        roles = ROLES.get(type(product.op), "") if product else ""
        constants = {roles[i] for i in constants_of(node) if i < len(roles)}
        constant = ", constant weights" * ("w" in constants)
        in_parts = f", {amx.PRECISION}" * (self.allows_bf16x3 and node.dtype == onednn.F32)
        return f", {threads} thread{'s' if threads > 1 else ''}{constant}{in_parts}"

    def image_lanes(self, roles: str, channels: Sequence[int]) -> list[Lanes]:
        """Return nchw, blocks, and channels last, each for both images.

        The few channels of a network's input are never blocked.
        """
        images = [c for role, c in zip(roles, channels, strict=True) if role != "w"]
        options = [[1, 1]]
        for block in onednn.blocks():
            if all(c % block == 0 or c <= FEW_CHANNELS for c in images):
                options.append([1 if c % block else block for c in images])
        return [_with_weights(roles, lanes) for lanes in (*options, images)]

    def reorder_lanes(self, spec: Spec) -> list[int]:
        channels = spec.shape[1]
        if spec.dtype not in self.dtypes:
            return []
        return [1, *(block for block in onednn.blocks() if channels % block == 0), channels]

    def estimate(self, problem: OpProblem, layouts: Layouts) -> float | None:
        """Return a rough prediction of the seconds of a float32 convolution, or of a reorder.

        Blocks of channels need no reorders and allow Winograd's algorithm.  The model assumes
        reorders for all other layouts, although oneDNN does without some of them.
        """
        specs = (*problem.inputs, *problem.results)
        if isinstance(problem.op, Reorder):
            return 2 * specs[0].nbytes / BYTES_PER_SECOND / self.threads
        if isinstance(problem.op, Matmul) or specs[0].dtype != onednn.F32:
            return None
        arrangement = problem.arrangement(layouts)
        uses_winograd = winograd.is_favourite(arrangement.node)
        # oneDNN lacks some grouped, dilated and widely padded convolutions, and some between nchw
        # and another layout.  Only these are looked up: creating descriptors takes long.
        conv, mixed = conv_of(problem.op), len({x.lanes == 1 for x in layouts if x.lanes}) > 1
        is_dense = conv.groups == 1 and conv.dilation == primitives.POINTWISE
        is_common = is_dense and max(conv.padding) <= MAX_COMMON_PADDING and not mixed
        gathering = 0.0
        if not uses_winograd and not (onednn.library() and is_common):
            first = next(iter(problem.candidates(layouts)), None)
            if first is None:
                return NUMPY_PENALTY + problem.work / FLOPS_PER_SECOND["numpy"]
            if first.name == product.NAME or "gemm" in first.name:
                layout = "others" if any(x.lanes > 1 for x in layouts) else "nchw"
                gathering = problem.work / 2 / _rows(problem) * GATHER_SECONDS[layout]
        reordered = sum(
            spec.nbytes
            for spec, layout in zip(specs, layouts, strict=True)
            if layout.lanes not in (0, *onednn.blocks()) and spec.shape[1] > FEW_CHANNELS
        )
        in_tiles = self.allows_bf16x3 and tiles.is_favourite(arrangement.node, parts=2)
        kind = "tiles" if in_tiles else "winograd" if uses_winograd else "direct"
        seconds = problem.work / FLOPS_PER_SECOND[kind] + 2 * reordered / BYTES_PER_SECOND
        if any(1 < layout.lanes < onednn.block() for layout in layouts) and conv.groups == 1:
            seconds *= SHORT_VECTORS
        return (seconds + gathering) / self.threads

    def shortlist(self, problem: OpProblem, layouts: Layouts) -> list[Candidate]:
        """Return the first candidate, and its rivals if measuring may pay."""
        supported = (c for c in problem.candidates(layouts) if _is_supported(c))
        first = next(supported, None)
        if first is None or _is_sure(problem, first):
            return [first] if first else []
        rivals = [*itertools.islice(supported, MAX_RIVALS)]
        cost = sum(
            COMPILE_SECONDS if rival.kernel.maker == "c" else CREATION_SECONDS for rival in rivals
        )
        nbytes = sum(spec.nbytes for spec in (*problem.inputs, *problem.results))
        seconds = (
            problem.work / FLOPS_PER_SECOND["direct"] + nbytes / BYTES_PER_SECOND
        ) / self.threads + CALL_SECONDS
        return [first, *rivals] if EXPECTED_CALLS * EXPECTED_GAIN * seconds > cost else [first]

    def candidates(self, arrangement: Arrangement) -> Iterable[Candidate]:
        node, strides, layouts = arrangement
        threads = primitives.threads_for_node(node, self.threads)
        if isinstance(node.op, Reorder):
            make = partial(native_kernel, node, strides, threads)
            return [Candidate("generated", layouts, make)] if compiler.compiler() else []
        generators = [*CANDIDATES]
        if winograd.is_favourite(node):
            generators.sort(key=lambda g: g is not winograd.candidates)
        elif direct.is_favourite(node):
            generators.sort(key=lambda g: g is not direct.candidates)
        elif _reads_in_panels(arrangement):
            generators.sort(key=lambda g: g is not panel_candidates)
        elif transposed.is_favourite(arrangement):
            generators.sort(key=lambda g: g is not transposed.candidates)
        elif tiles.is_favourite(node, parts=3):
            generators.sort(key=lambda g: g is not tiles.candidates)
        if self.allows_bf16x3:
            first = tiles.is_favourite(node, parts=2) and not transposed.applies(node)
            generators.insert(0 if first else len(generators), partial(tiles.candidates, parts=2))
        candidates = itertools.chain.from_iterable(g(arrangement, threads) for g in generators)
        plain = product_of(node)
        if plain and primitives.sums_of_many_pixels(plain.op, node):
            return _accurate_candidates([*candidates], node)
        if direct.is_depthwise_gradient(node):  # for which oneDNN's kernel for all groups is slow
            return sorted(candidates, key=lambda candidate: candidate.name.startswith(GENERAL))
        return candidates


def _reads_in_panels(arrangement: Arrangement) -> bool:
    """Whether panels are expected to be the fastest for a product of few rows."""
    node, strides, _ = arrangement
    return (
        transposed.applies(node)
        and node.shape[0] >= MIN_PANEL_ROWS
        and node.inputs[1].size >= MIN_PANEL_MATRIX
        and strides[1][-1] == onednn.F32.itemsize
        and onednn.block() >= MIN_PANEL_LANES
    )


def _rows(problem: OpProblem) -> int:
    """Return the rows that share what is gathered: channels of a group of the result."""
    outs, ins, *_ = _shape(problem, "w")
    is_gradient = isinstance(problem.op, Conv2dBackwardData)
    return ins if is_gradient else outs // conv_of(problem.op).groups


def _shape(problem: OpProblem, role: str) -> Shape:
    """Return the shape of a convolution's operand or result, by its role in `ROLES`."""
    specs = *problem.inputs[:2], problem.results[0]
    return specs[ROLES[type(problem.op)].index(role)].shape


def _is_supported(candidate: Candidate) -> bool:
    try:
        return candidate.kernel is not None
    except GraphError:  # the library describes the kernel, but does not support it
        return False


def _is_sure(problem: OpProblem, first: Candidate) -> bool:
    """Whether the first candidate is almost certainly the fastest."""
    result = problem.results[0]
    if (
        problem.work < SURE_OPERATIONS
        or result.dtype != onednn.F32
        or isinstance(problem.op, Reorder)
    ):
        return False
    if isinstance(problem.op, Matmul):
        return not transposed.applies(problem.arrangement(problem.options[0]).node)
    if first.name in (winograd.NAME, *tiles.NAMES.values()):
        return True
    is_pointwise = _shape(problem, "w")[2:] == primitives.POINTWISE
    return is_pointwise or min(_shape(problem, role)[1] for role in "xy") <= FEW_CHANNELS


def _accurate_candidates(candidates: Sequence[Candidate], node: Node) -> Sequence[Candidate]:
    """Return candidates for sums of many pixels, without oneDNN's inexact ones if possible.

    oneDNN's "gemm" comes last, as it is slow for windows of several pixels.
    """
    exact = [c for c in candidates if not c.name.startswith(GENERAL)]
    point = node.shape[2:] == primitives.POINTWISE
    fast = [c for c in exact if point or "gemm" not in c.name]
    return [*fast, *(c for c in exact if c not in fast)] if fast else candidates


def _with_weights(roles: str, lanes: Sequence[int]) -> Lanes:
    """Return the lanes of all three operands, given those of the two images."""
    images = iter(lanes)
    first, second, result = (1 if role == "w" else next(images) for role in roles)
    return first, second, result
