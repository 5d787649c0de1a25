"""Float32 products and convolutions on AMX's tiles: see `minigraph.devices.cpu.amx`."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from minigraph.autotune.candidate import Candidate
from minigraph.devices.cpu import amx, onednn
from minigraph.devices.cpu.amx import BLOCK, DEPTH, LINES, PANEL, TILE
from minigraph.devices.cpu.kernel import KernelCall, NativeKernel, Operands
from minigraph.devices.cpu.kernels import fill
from minigraph.devices.cpu.tile_product import TileProduct, products_in_tiles
from minigraph.devices.problem import TRANSPOSED, Arrangement, operations
from minigraph.graph import Node
from minigraph.jit.source import KernelSource
from minigraph.ops.matmul import Matmul
from minigraph.program import round_up

NAMES = {parts: f"tiles {name}" for parts, name in amx.PARTS.items()}  # the algorithms
COMMON_TEXT = Path(__file__).with_suffix(".c").read_text()
PIXEL = 4 * LINES  # bytes of DEPTH channels in a part of a strip
STRIP_BYTES = 768 << 10  # bytes of strips of images in a thread's second-level cache
MAX_STRIPS = 8  # strips of a task
AHEAD = 2  # distance of prefetching, in steps
SUMS_BYTES = BLOCK * BLOCK * onednn.F32.itemsize  # of a block of results
HEIGHT = 4  # largest number of blocks of rows that a thread packs at once
TASKS_PER_THREAD = 2  # least number, if the work can be divided so far
MIN_OPERATIONS = 20_000_000  # of fewer, packing takes as long as multiplying
# Minimal sums and lines of products for which tiles are chosen without measuring, by parts.  Six
# products took 0.7 to 1 of oneDNN's time, and up to 1.3 with fewer; three took 0.3 to 1.05 of the
# time of the fastest other candidate, Winograd's algorithm included, and up to 4.3 with fewer.
MIN_SUMS, MIN_LINES = {2: 64, 3: 128}, {2: 32, 3: 128}
MIN_WEIGHT_LINES = 128  # of a weights' gradient: with 64, Winograd's algorithm took 0.7 to 1.0


def _pays(node: Node) -> bool:
    """Whether tiles are available and `node` is large enough to pay for packing its operands."""
    return not amx.why_not() and operations(node) >= MIN_OPERATIONS


def is_favourite(node: Node, parts: int) -> bool:
    """Whether tiles, with numbers in `parts` parts, are expected to be the fastest.

    Winograd's algorithm may be faster than three parts.
    """
    products = products_in_tiles(node) if _pays(node) else []
    minima = MIN_SUMS[parts], MIN_LINES[parts]
    return bool(products) and all(
        p.sums >= minima[0]
        and min(p.rows, p.columns) >= (MIN_WEIGHT_LINES if p.text == "weights" else minima[1])
        for p in products
    )


def candidates(arrangement: Arrangement, threads: int, parts: int = 3) -> Iterator[Candidate]:
    """Yield the candidate, if any, for a node on tiles, with numbers in `parts` parts."""
    node, _, layouts = arrangement
    columns = [layout == TRANSPOSED for layout in layouts]
    products = products_in_tiles(node, columns) if _pays(node) else []
    if products:
        make = functools.partial(tile_kernel, node, products, threads, parts)
        yield Candidate(
            NAMES[parts], layouts, make, precision=amx.PRECISION if parts == 2 else "float32"
        )


def tile_kernel(
    node: Node, products: Sequence[TileProduct], threads: int, parts: int
) -> NativeKernel:
    """Return the kernel of a node that these products compute, with numbers in `parts` parts."""
    blockings = [BLOCKINGS[product.text](product, threads, parts) for product in products]

    def call(product: TileProduct, blocking: _ProductBlocking) -> KernelCall:
        def words(operands: Operands) -> list[int]:
            ins, outs, memory, _ = operands
            bias = ins[2] if len(ins) == 3 else (-1, 0)
            head = [threads, *product[:3], *blocking.sizes, *memory, *bias]
            pairs = zip(product[3:6], (*ins[:2], *outs), strict=True)
            return [*head, *(word for operand, place in pairs for word in operand.words(place))]

        return KernelCall(_text(parts, product.text), words)

    calls = [*map(call, products, blockings)]
    if sum(p.rows * p.columns for p in products) < math.prod(node.shape):
        calls.insert(0, fill(node, threads))
    strided = [i < 2 and isinstance(node.op, Matmul) for i, _ in enumerate(node.inputs)]
    memory = round_up(max(blocking.memory for blocking in blockings))
    kernel = NativeKernel(node, calls, memory, strided, algorithm=NAMES[parts])
    kernel.threads = threads
    return kernel


class _ProductBlocking(NamedTuple):
    """The division of a product into blocks: words for its C text, and bytes of scratch memory."""

    sizes: list[int]
    memory: int


def _blocks(product: TileProduct, threads: int, parts: int) -> _ProductBlocking:
    panel, panels = _panels(product)
    flipped = product.rows < product.columns
    packed, streamed = sorted(math.ceil(n / BLOCK) for n in (product.rows, product.columns))
    height = max(min(HEIGHT, streamed // threads), 1)
    groups = math.ceil(streamed / height)
    share = math.ceil(TASKS_PER_THREAD * threads / groups) if threads > 1 else 1
    memory = _packed_bytes(packed * panel, parts)
    memory += threads * height * panel * (_step(parts) + 64)
    if panels > 1:
        memory += streamed * packed * SUMS_BYTES
    return _ProductBlocking([panel, height, math.ceil(packed / share), flipped], memory)


def _strips(product: TileProduct, threads: int, parts: int) -> _ProductBlocking:
    x, (panel, panels) = product.x, _panels(product)
    _, images, height, width = x.lines.extent
    channels, taps_down, taps_across, _ = x.sums.extent  # channels in units of DEPTH
    halo = (taps_down - 1) * x.sums.row_step[1]
    halo_columns = (taps_across - 1) * x.sums.column_step[2]
    row_bytes = (width + halo_columns) * channels * PIXEL * parts
    tasks = math.ceil(TASKS_PER_THREAD * threads / images) if threads > 1 else 1  # of an image
    max_rows = max(min(STRIP_BYTES // row_bytes - halo, math.ceil(height / tasks)), 1)
    rows = math.ceil(height / math.ceil(height / max_rows))
    nbytes = (rows + halo) * row_bytes + (2 * BLOCK + halo_columns) * PIXEL * parts
    strips = images * math.ceil(height / rows)
    group = min(STRIP_BYTES // nbytes, strips // (TASKS_PER_THREAD * threads), MAX_STRIPS)
    group = max(group, 1)
    column_blocks = math.ceil(product.columns / BLOCK)
    memory = _packed_bytes(panels * column_blocks * panel, parts) + threads * group * nbytes
    memory += math.ceil(product.sums / DEPTH / 8) * 64
    return _ProductBlocking([panel, rows, group], memory)


def _panels(product: TileProduct) -> tuple[int, int]:
    """Return the number of steps of DEPTH sums in a panel, and the number of panels."""
    steps = math.ceil(product.sums / DEPTH)
    panels = math.ceil(steps / PANEL)
    return math.ceil(steps / panels), panels


def _packed_bytes(tiles: int, parts: int) -> int:
    """Return the bytes of `tiles` packed blocks, and of their flags for special values."""
    return tiles * _step(parts) + math.ceil(tiles / 64) * 64


def _weight_strips(product: TileProduct, threads: int, parts: int) -> _ProductBlocking:
    _, images, height, pitch = product.x.sums.extent
    channels, taps_down, _, _ = product.y.lines.extent  # channels in units of DEPTH
    halo = (taps_down - 1) * product.y.lines.row_step[1]
    rows = math.ceil(height / math.ceil(height / (PANEL * DEPTH // pitch)))
    steps = math.ceil(rows * pitch / DEPTH)
    group = min(images, PANEL // steps) if rows == height else 1
    row_blocks, column_blocks = math.ceil(product.rows / BLOCK), product.columns // BLOCK
    words = ((steps + 1) * DEPTH + halo * pitch) // LINES * LINES
    memory = row_blocks * group * steps * (_step(parts) + 1)
    memory += group * 2 * channels * (parts * words * PIXEL + 1)
    memory += row_blocks * column_blocks * SUMS_BYTES
    return _ProductBlocking([rows, group], memory)


BLOCKINGS = {"matrices": _blocks, "images": _strips, "weights": _weight_strips}


@functools.cache
def _text(parts: int, kind: str) -> KernelSource:
    text = COMMON_TEXT + Path(__file__).with_name(f"tiles_{kind}.c").read_text()
    sizes = {"HEIGHT": HEIGHT, "MAX_STRIPS": MAX_STRIPS, "AHEAD": AHEAD}
    return amx.source(parts, text, BORDER="1u", **sizes, STEP=_step(parts), PIXEL=PIXEL)


def _step(parts: int) -> int:
    """Return the bytes of a block's tiles for DEPTH sums."""
    return 2 * parts * TILE
