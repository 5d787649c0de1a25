"""Copies of images and weights to the channels that cuDNN reads best, and back from them.

Channels may be added, which are zero, and the pixels of a block may become channels of one pixel:
"space to depth", or PyTorch's `pixel_unshuffle`, of images that are padded before.  Of the images x
channel k of pixel (i, j) is then, for blocks of h x w pixels which are s rows and columns apart,

    x[n, k / w / h, s i + k / w % h, s j + k % w]
"""

from __future__ import annotations

import math
from typing import NamedTuple

from minigraph.devices.cuda.cudnn_graph import ITEMSIZE, Tensor, channels_last
from minigraph.devices.cuda.kernel import Launch, Words
from minigraph.devices.cuda.template import NARROW, THREADS
from minigraph.jit.source import KernelSource
from minigraph.ops.window import Pair

MOST_ROWS = (1 << 16) - 1  # blocks of a grid along y
VECTOR, SECTOR = 16, 32  # bytes of the widest loads, and of what memory moves at once
BITS = {2: "uint16_t", 4: "uint32_t"}


class Blocks(NamedTuple):
    """Which pixels become channels of one pixel.

    size     rows and columns of a block
    apart    rows and columns from one block to the next
    padding  rows above the first pixel, and columns left of it
    """

    size: Pair = (1, 1)
    apart: Pair = (1, 1)
    padding: Pair = (0, 0)


EACH_PIXEL = Blocks()
# A thread has `wide` neighbouring channels of one pixel: a vector where the channels are last.
# Threads along x are pixels, so those of planes are neighbours too, and the many pixels of an image
# cost no division; `pair` of them have vectors that fill a sector.  Threads along y are the other
# channels of all images.  Numbers are unsigned: a row above the first is one far below the last.
# An index is a sum before it is added to an address: of a sum of three, NVRTC makes stores of
# single elements.
TEXT = """
struct NAME_args { int64_t w[18]; };
extern "C" __global__ void NAME(const __grid_constant__ NAME_args a) {
  %(T)s *const vectors = (%(T)s *)mg_global(a.w[%(last)d]);
  %(T)s *const others = (%(T)s *)mg_global(a.w[1 - %(last)d]);
  const %(I)s places = a.w[2], rows = a.w[3], across = a.w[4], columns = a.w[5];
  const %(I)s to_channel = a.w[6], to_pixel = a.w[7];
  const %(I)s channels = a.w[8], height = a.w[9], width = a.w[10];
  const %(I)s channel_step = a.w[11], row_step = a.w[12], column_step = a.w[13];
  const %(I)s place = blockIdx.x * (%(I)s)blockDim.x + threadIdx.x;
  if (place >= places) return;
  const %(I)s pixel = place / %(pair)d, i = pixel / columns, j = pixel - i * columns;
  const %(I)s top = i * (%(I)s)a.w[14] - (%(I)s)a.w[16];
  const %(I)s left = j * (%(I)s)a.w[15] - (%(I)s)a.w[17];
  const %(I)s begin = blockIdx.y * (%(I)s)blockDim.y + threadIdx.y, step = gridDim.y * blockDim.y;
  for (%(I)s line = begin; line < rows; line += step) {
    const %(I)s image = across == 1 ? line : line / across;
    const %(I)s vector = (line - image * across) * %(pair)d + place %% %(pair)d;
    const %(I)s first = vector * %(wide)d;
    const %(I)s offset = image * across * %(wide)d * places + first * to_channel + pixel * to_pixel;
    %(T)s *const all = vectors + offset;
    %(T)s *const one = others + image * channels * height * width;
    %(T)s x[%(wide)d];
    %(load)s
    %(unrolled)s{
      const %(I)s k = first + u, channel = k / %(w)d / %(h)d;
      const %(I)s row = top + k / %(w)d %% %(h)d, column = left + k %% %(w)d;
      const bool inside = channel < channels && row < height && column < width;
      const %(I)s at = channel * channel_step + row * row_step + column * column_step;
      %(move)s
    }
    %(store)s
  }
}
"""
WIDEN, NARROW_DOWN = "x[u] = inside ? one[at] : 0;", "if (inside) one[at] = x[u];"
UNROLLED = """#pragma unroll
    for (int u = 0; u < %(wide)d; u++) """
VECTORS = {  # of channels that are last, or not
    (True, "load"): "mg_load<%(wide)d>(x, (const char *)all);",
    (True, "store"): "mg_store<%(wide)d>((char *)all, x);",
    (False, "load"): UNROLLED + "x[u] = all[u * to_channel];",
    (False, "store"): UNROLLED + "all[u * to_channel] = x[u];",
}


def channel_copy(
    source: Tensor, target: Tensor, words: Words, blocks: Blocks = EACH_PIXEL
) -> Launch:
    """Return the launch that copies the channels that both have; others of the target become 0.

    That with more channels is what cuDNN has: its channels are the pixels of the other's blocks.
    Of equally many, it has the channels last.

    words  returns the addresses of both, of the addresses that `Launch.words` takes
    """
    before, after = source.shape[1], target.shape[1]
    widens = after > before or (after == before and _channels_last(target))
    inner, outer = (target, source) if widens else (source, target)
    last, size = _channels_last(inner), ITEMSIZE[inner.dtype]
    n, most, *plane = inner.shape
    together = math.gcd(most, VECTOR // size)
    pair = math.gcd(most // together, SECTOR // VECTOR) if last else 1
    fill: dict[str, object] = {
        "T": BITS[size],
        "I": "uint32_t" if max(map(math.prod, (inner.shape, outer.shape))) < NARROW else "uint64_t",
        "wide": together,
        "pair": pair,
        "last": int(widens),
        "h": blocks.size[0],
        "w": blocks.size[1],
        "unrolled": UNROLLED % {"wide": together},
        "load": "",
        "store": "",
        "move": WIDEN if widens else NARROW_DOWN,
    }
    end = "store" if widens else "load"
    fill[end] = VECTORS[last, end] % fill
    across, places = most // together // pair, math.prod(plane) * pair
    rows = n * across
    block = (min(places, THREADS), max(1, THREADS // places), 1)
    grid = (math.ceil(places / block[0]), min(math.ceil(rows / block[1]), MOST_ROWS), 1)
    inner_steps = inner.strides[1], inner.strides[3]
    sizes = [places, rows, across, plane[1], *inner_steps, *outer.shape[1:], *outer.strides[1:]]
    sizes += blocks.apart + blocks.padding
    return Launch(KernelSource(TEXT % fill), grid, block, lambda *at: [*words(*at), *sizes])


def _channels_last(tensor: Tensor) -> bool:
    return tensor.lies_as(channels_last(tensor.shape, tensor.dtype))
