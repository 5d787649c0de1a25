"""Local response normalisation in CUDA."""

from __future__ import annotations

import math
import struct

from minigraph.devices.cuda.template import Kernels, WrittenKernel, each_element, element
from minigraph.graph import Node
from minigraph.ops.normalization import LocalResponseNorm
from minigraph.ops.reduction import FEW

# A thread does an element.  Sizes: count, channels, pixels, how many channels make a window, then
# the bits of alpha / size, beta and k, as doubles.
TEXT = """
    const %(I)s pixels = a.w[%(sizes)d + 2];
    const int64_t channels = a.w[%(sizes)d + 1], window = a.w[%(sizes)d + 3];
    const %(W)s scale = __longlong_as_double(a.w[%(sizes)d + 4]);
    const %(W)s beta = __longlong_as_double(a.w[%(sizes)d + 5]);
    const %(W)s bias = __longlong_as_double(a.w[%(sizes)d + 6]);
    const int64_t c = e / pixels %% (%(I)s)channels;
    const int64_t low = max(-c, -(window / 2));
    const int64_t high = min(channels - 1 - c, window - 1 - window / 2);
    const %(T)s *p = (const %(T)s *)mg_global(a.w[0]) + e;
    %(S)s sum = 0;
    for (int64_t k = low; k <= high; k++) {
      const %(W)s v = %(load)s(p[k * (int64_t)pixels]);
      sum += v * v;
    }
    const %(W)s v = %(load)s(p[0]);
    ((%(T)s *)mg_global(a.w[1]))[e] = %(store)s(v * pow%(f)s((%(W)s)sum * scale + bias, -beta));
  }
}
"""


def local_response_norm(op: LocalResponseNorm, node: Node) -> WrittenKernel:
    channels, pixels = node.shape[1], math.prod(node.shape[2:])
    sizes = (channels, pixels, op.size, *map(bits, (op.alpha / op.size, op.beta, op.k)))
    fill = element(node.dtype)
    if op.size <= FEW:
        fill["S"] = fill["W"]
    return WrittenKernel(each_element(node, TEXT, node.size, sizes, **fill))


def bits(value: float) -> int:
    """Return the bits of a double as an integer, which is what words hold."""
    return int.from_bytes(struct.pack("<d", value), "little", signed=True)


KERNELS: Kernels = {LocalResponseNorm: local_response_norm}
