"""Float32 products and convolutions on AMX's tiles: see `minigraph.devices.cpu.amx`."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from minigraph.autotune.candidate import Candidate
from minigraph.devices.cpu import amx, onednn
from minigraph.devices.cpu.amx import BLOCK, DEEP, LINES, PANEL, TILE
from minigraph.devices.cpu.kernel import KernelCall, NativeKernel, Place
from minigraph.devices.cpu.kernels import fill
from minigraph.devices.cpu.tile_product import TileProduct, products_in_tiles
from minigraph.devices.problem import TRANSPOSED, Arrangement, operations
from minigraph.graph import Node
from minigraph.jit.source import KernelSource
from minigraph.ops.matmul import Matmul
from minigraph.program import round_up

NAMES = {parts: f"tiles {name}" for parts, name in amx.PARTS.items()}  # the algorithms
COMMON = Path(__file__).with_suffix(".c").read_text()
PIXEL = 4 * LINES  # bytes of DEEP channels in a part of a strip
OWN = 768 << 10  # bytes of strips of images in a thread's second-level cache
MOST = 8  # strips of a task, at most
AHEAD = 2  # steps of prefetching
HEIGHT = 4  # blocks of rows that a thread packs at once, at most
TASKS = 2  # for each thread, at least, if the work can be divided so far
LEAST = 20_000_000  # operations: below, packing takes as long as multiplying
# Minimal sums and lines of products for which tiles are chosen without measuring, by parts.  Six
# products took 0.7 to 0.9 of oneDNN's time, and up to 1.3 with fewer; three took 0.3 to 1.05 of the
# time of the fastest other candidate, Winograd's algorithm included, and up to 4.3 with fewer.
LEAST_SUMS, LEAST_LINES = {2: 64, 3: 256}, {2: 32, 3: 128}
WEIGHTS_LINES = 128  # of a weights' gradient: with 64, Winograd's algorithm took 0.7 to 1.0


def _pays(node: Node) -> bool:
    """Whether tiles are available and `node` is large enough to pay for packing its operands."""
    return not amx.why_not() and operations(node) >= LEAST


def is_favourite(node: Node, parts: int) -> bool:
    """Whether tiles with so many parts are expected to be the fastest.

    Winograd's algorithm may be faster than three parts.
    """
    products = products_in_tiles(node) if _pays(node) else []
    least = LEAST_SUMS[parts], LEAST_LINES[parts]
    return bool(products) and all(
        p.sums >= least[0]
        and min(p.rows, p.columns) >= (WEIGHTS_LINES if p.text == "weights" else least[1])
        for p in products
    )


def candidates(arrangement: Arrangement, threads: int, parts: int = 3) -> Iterator[Candidate]:
    """Yield the candidate for a node on tiles, with numbers in so many parts, if there is one."""
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
    """Return the kernel of a node that these products compute, with numbers in so many parts."""
    works = [DIVIDED[product.text](product, threads, parts) for product in products]

    def call(product: TileProduct, work: _Work) -> KernelCall:
        def words(ins: Sequence[Place], outs: Sequence[Place], memory: Place) -> list[int]:
            bias = ins[2] if len(ins) == 3 else (-1, 0)
            head = [threads, *product[:3], *work.sizes, *memory, *bias]
            operands = zip(product[3:6], (*ins[:2], *outs), strict=True)
            return [*head, *(word for operand, place in operands for word in operand.words(place))]

        return KernelCall(_text(parts, product.text), words)

    calls = [*map(call, products, works)]
    if sum(p.rows * p.columns for p in products) < math.prod(node.shape):
        calls.insert(0, fill(node, "0", threads))
    strided = [i < 2 and isinstance(node.op, Matmul) for i, _ in enumerate(node.inputs)]
    memory = round_up(max(work.memory for work in works))
    kernel = NativeKernel(node, calls, memory, strided, algorithm=NAMES[parts])
    kernel.threads = threads
    return kernel


class _Work(NamedTuple):
    """The division of a product: sizes for its C text, and bytes of scratch memory."""

    sizes: list[int]
    memory: int


def _blocks(product: TileProduct, threads: int, parts: int) -> _Work:
    panel, panels = _panels(product)
    flipped = product.rows < product.columns
    wide, down = sorted((math.ceil(product.rows / BLOCK), math.ceil(product.columns / BLOCK)))
    height = max(min(HEIGHT, down // threads), 1)
    share = math.ceil(TASKS * threads / math.ceil(down / height)) if threads > 1 else 1
    own = threads * height * panel * (_step(parts) + 64)
    kept = down * wide * BLOCK * BLOCK * onednn.F32.itemsize if panels > 1 else 0
    memory = _columns_bytes(wide * panel, parts) + own + kept
    return _Work([panel, height, math.ceil(wide / share), flipped], memory)


def _strips(product: TileProduct, threads: int, parts: int) -> _Work:
    x, (panel, panels) = product.x, _panels(product)
    _, images, down, across = x.lines.extent
    deep, taps_down, taps_across, _ = x.sums.extent
    halo, further = (taps_down - 1) * x.sums.down[1], (taps_across - 1) * x.sums.across[2]
    line = (across + further) * deep * PIXEL * parts  # bytes of a row
    tasks = math.ceil(TASKS * threads / images) if threads > 1 else 1  # of an image
    most = max(min(OWN // line - halo, math.ceil(down / tasks)), 1)
    rows = math.ceil(down / math.ceil(down / most))
    room = (rows + halo) * line + (2 * BLOCK + further) * PIXEL * parts
    strips = images * math.ceil(down / rows)
    group = max(min(OWN // room, strips // (TASKS * threads), MOST), 1)
    wide = math.ceil(product.columns / BLOCK)
    memory = _columns_bytes(panels * wide * panel, parts) + threads * group * room
    memory += math.ceil(product.sums / DEEP / 8) * 64
    return _Work([panel, rows, group], memory)


def _panels(product: TileProduct) -> tuple[int, int]:
    """Return the number of steps of DEEP sums in a panel, and the number of panels."""
    steps = math.ceil(product.sums / DEEP)
    panels = math.ceil(steps / PANEL)
    return math.ceil(steps / panels), panels


def _columns_bytes(tiles: int, parts: int) -> int:
    """Return the bytes of so many blocks of columns, and of their flags for special values."""
    return tiles * _step(parts) + math.ceil(tiles / 64) * 64


def _weight_strips(product: TileProduct, threads: int, parts: int) -> _Work:
    _, images, tall, pitch = product.x.sums.extent
    deep, taps_down, _, _ = product.y.lines.extent
    halo = (taps_down - 1) * product.y.lines.down[1]
    rows = math.ceil(tall / math.ceil(tall / (PANEL * DEEP // pitch)))
    steps = math.ceil(rows * pitch / DEEP)
    group = min(images, PANEL // steps) if rows == tall else 1
    down, wide = math.ceil(product.rows / BLOCK), product.columns // BLOCK
    words = ((steps + 1) * DEEP + halo * pitch) // LINES * LINES
    tiles = down * group * steps
    read = group * 2 * deep * parts * words * PIXEL
    kept = down * wide * BLOCK * BLOCK * onednn.F32.itemsize
    return _Work([rows, group], tiles * (_step(parts) + 1) + read + kept + 2 * deep * group)


DIVIDED = {"matrices": _blocks, "images": _strips, "weights": _weight_strips}


@functools.cache
def _text(parts: int, kind: str) -> KernelSource:
    text = COMMON + Path(__file__).with_name(f"tiles_{kind}.c").read_text()
    sizes = {"HEIGHT": HEIGHT, "MOST": MOST, "AHEAD": AHEAD, "STEP": _step(parts), "PIXEL": PIXEL}
    return amx.source(parts, text, BORDER="1u", **sizes)


def _step(parts: int) -> int:
    """Return the bytes of a block's tiles for DEEP sums."""
    return 2 * parts * TILE
