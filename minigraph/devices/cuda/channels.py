"""Copies of images and weights to a number of channels that cuDNN reads fast, and back.

A copy may add channels of zeros.  It may also pad the image and turn the pixels of a block into
channels of one pixel ("space to depth", PyTorch's `pixel_unshuffle`).  With blocks of h x w pixels
at a stride of s rows and columns, channel k of pixel (i, j) is

    x[n, k / w / h, s i + k / w % h, s j + k % w]
"""

from __future__ import annotations

import math
from typing import NamedTuple

from minigraph.devices.cuda.cudnn_graph import ITEMSIZE, Tensor, channels_last
from minigraph.devices.cuda.handwritten import THREADS, index_type, text_of
from minigraph.devices.cuda.kernel import Launch, Words
from minigraph.jit.macros import with_macros
from minigraph.jit.source import KernelSource
from minigraph.ops.window import Pair

MAX_GRID_Y = (1 << 16) - 1  # blocks of a grid along y
VECTOR_BYTES, SECTOR_BYTES = 16, 32  # bytes of the widest load, and of a transaction of the memory


class Blocks(NamedTuple):
    """The blocks of pixels that become channels of one pixel.

    size     rows and columns of a block
    stride   rows and columns from one block to the next
    padding  rows above the first pixel, and columns left of it
    """

    size: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)


SINGLE_PIXELS = Blocks()


def channel_copy(
    source: Tensor, target: Tensor, words: Words, blocks: Blocks = SINGLE_PIXELS
) -> Launch:
    """Return the launch that copies the common channels; other channels of the target become 0.

    The operand with more channels is cuDNN's: its channels are the pixels of the other's blocks.
    If both have as many, the operand with the channels last is cuDNN's.

    words  picks the addresses of the two operands from the arguments of `Launch.words`
    """
    before, after = source.shape[1], target.shape[1]
    widens = after > before or (after == before and _channels_last(target))
    inner, outer = (target, source) if widens else (source, target)
    is_last, size = _channels_last(inner), ITEMSIZE[inner.dtype]
    n, channels, *plane = inner.shape
    vector_length = math.gcd(channels, VECTOR_BYTES // size)
    pair = math.gcd(channels // vector_length, SECTOR_BYTES // VECTOR_BYTES) if is_last else 1
    text = with_macros(
        text_of("channels"),
        T=f"uint{8 * size}_t",
        I=index_type(max(map(math.prod, (inner.shape, outer.shape)))),
        WIDE=vector_length,
        PAIR=pair,
        WIDENS=int(widens),
        LAST=int(is_last),
        BLOCK_ROWS=blocks.size[0],
        BLOCK_COLUMNS=blocks.size[1],
    )
    across, threads_x = channels // vector_length // pair, math.prod(plane) * pair
    rows = n * across
    block = (min(threads_x, THREADS), max(1, THREADS // threads_x), 1)
    grid = (math.ceil(threads_x / block[0]), min(math.ceil(rows / block[1]), MAX_GRID_Y), 1)
    inner_steps = inner.strides[1], inner.strides[3]
    sizes = [threads_x, rows, across, plane[1], *inner_steps, *outer.shape[1:], *outer.strides[1:]]
    sizes += blocks.stride + blocks.padding
    return Launch(KernelSource(text), grid, block, lambda *operands: [*words(*operands), *sizes])


def _channels_last(tensor: Tensor) -> bool:
    return tensor.has_layout_of(channels_last(tensor.shape, tensor.dtype))
