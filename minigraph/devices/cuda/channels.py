"""Copies of images and weights to channels last with channels added, and back without them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from minigraph.devices.cuda.cudnn_graph import ITEMSIZE, Tensor, channels_last
from minigraph.devices.cuda.launches import Launch
from minigraph.devices.cuda.template import NARROW, THREADS
from minigraph.jit.source import KernelSource

MOST_ROWS = (1 << 16) - 1  # blocks of a grid along y
VECTOR = 16  # bytes of the widest loads
Words = Callable[[Sequence[int], Sequence[int], int], list[int]]
BITS = {2: "uint16_t", 4: "uint32_t"}

# A thread has `wide` neighbouring channels of one pixel: a vector where the channels are last.
# Threads along x are pixels, so those of planes are neighbours too, and the many pixels of an image
# cost no division; threads along y are vectors of all images.
TEXT = """
struct NAME_args { int64_t w[8]; };
extern "C" __global__ void NAME(const __grid_constant__ NAME_args a) {
  %(T)s *const vectors = (%(T)s *)mg_global(a.w[%(last)d]);
  %(T)s *const others = (%(T)s *)mg_global(a.w[1 - %(last)d]);
  const %(I)s pixels = a.w[2], rows = a.w[3], across = a.w[4], channels = a.w[5];
  const %(I)s channel_step = a.w[6], pixel_step = a.w[7];
  const %(I)s pixel = blockIdx.x * (%(I)s)blockDim.x + threadIdx.x;
  if (pixel >= pixels) return;
  const %(I)s begin = blockIdx.y * (%(I)s)blockDim.y + threadIdx.y, step = gridDim.y * blockDim.y;
  for (%(I)s row = begin; row < rows; row += step) {
    const %(I)s image = across == 1 ? row : row / across;
    const %(I)s vector = row - image * across, first = vector * %(wide)d;
    const %(I)s offset = image * channels * pixels + first * channel_step + pixel * pixel_step;
    %(T)s *const one = others + offset;
    char *const all = (char *)(vectors + ((image * pixels + pixel) * across + vector) * %(wide)d);
    %(T)s x[%(wide)d];
    %(move)s
  }
}
"""
WIDEN = """
    #pragma unroll
    for (int u = 0; u < %(wide)d; u++) x[u] = first + u < channels ? one[u * channel_step] : 0;
    mg_store<%(wide)d>(all, x);"""
NARROW_DOWN = """
    mg_load<%(wide)d>(x, all);
    #pragma unroll
    for (int u = 0; u < %(wide)d; u++) if (first + u < channels) one[u * channel_step] = x[u];"""


def channel_copy(source: Tensor, target: Tensor, words: Words, early: bool = False) -> Launch:
    """Return the launch that copies the channels that both have; others of the target become 0.

    One of them, that with more channels if there is one, has the channels last.

    words  returns the addresses of both, of the addresses that `Launch.words` takes
    early  as a launch is
    """
    before, after = source.shape[1], target.shape[1]
    widens = after > before or (after == before and _channels_last(target))
    wide, narrow = (target, source) if widens else (source, target)
    assert _channels_last(wide)
    n, most, *plane = wide.shape
    pixels, size = math.prod(plane), ITEMSIZE[wide.dtype]
    channels, channel_step, pixel_step = narrow.shape[1], narrow.strides[1], narrow.strides[3]
    together = math.gcd(most, VECTOR // size)
    fill: dict[str, object] = {
        "T": BITS[size],
        "I": "uint32_t" if math.prod(wide.shape) < NARROW else "uint64_t",
        "wide": together,
        "last": int(widens),
    }
    across = most // together
    text = TEXT % {**fill, "move": (WIDEN if widens else NARROW_DOWN) % fill}
    rows = n * across
    block = (min(pixels, THREADS), max(1, THREADS // pixels), 1)
    grid = (math.ceil(pixels / block[0]), min(math.ceil(rows / block[1]), MOST_ROWS), 1)
    sizes = [pixels, rows, across, channels, channel_step, pixel_step]
    return Launch(KernelSource(text), grid, block, lambda *at: [*words(*at), *sizes], early)


def _channels_last(tensor: Tensor) -> bool:
    return tensor.lies_as(channels_last(tensor.shape, tensor.dtype))
