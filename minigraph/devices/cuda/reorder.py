"""Images moved between nchw and the layouts with lanes, in CUDA: transposed matrices.

A block moves one tile after the other by way of shared memory, so that it reads and writes rows of
128 bytes.  Rows of the tile begin in different banks.
"""

from __future__ import annotations

import math

from minigraph.devices.cuda.kernel import CudaKernel
from minigraph.devices.cuda.template import THREADS, Kernels, written_kernel
from minigraph.graph import Node
from minigraph.ops.layout import Reorder

VECTOR, ACROSS = 16, 8  # bytes of an access, and how many make a row of a tile

# Each matrix is x [rows, columns] and y [columns, rows].  An index is a sum before it is added to
# an address: of a sum of three, NVRTC makes stores of single elements.
TEXT = """
    const int side = %(side)d, vector = %(vector)d, across = %(across)d;
    const %(I)s rows = a.w[%(sizes)d + 1], columns = a.w[%(sizes)d + 2];
    const %(I)s tiles = (columns + side - 1) / side, high = (rows + side - 1) / side;
    const %(I)s t = row, strip = t / tiles, matrix = strip / high;
    const %(I)s c = (t - strip * tiles) * side, r = (strip - matrix * high) * side;
    const %(T)s *x = (const %(T)s *)mg_global(a.w[0]) + matrix * rows * columns + r * columns + c;
    %(T)s *y = (%(T)s *)mg_global(a.w[1]) + matrix * rows * columns + c * rows + r;
    const int wide = min(columns - c, (%(I)s)side), tall = min(rows - r, (%(I)s)side);
    const int step = %(block)d / across, turns = (side + step - 1) / step;
    const int first_i = threadIdx.x / across, first_j = threadIdx.x %% across * vector;
    __shared__ %(T)s tile[side][side + 1];
    if (columns %% vector == 0 && a.w[0] %% 16 == 0) {
      %(T)s part[turns][vector];
      #pragma unroll
      for (int m = 0; m < turns; m++) { /* what lies outside is read again instead */
        const int i = min(first_i + m * step, tall - 1), j = min(first_j, wide - vector);
        mg_load<vector>(part[m], (const char *)(x + (i * columns + j)));
      }
      #pragma unroll
      for (int m = 0; m < turns; m++) {
        const int i = min(first_i + m * step, tall - 1), j = min(first_j, wide - vector);
        #pragma unroll
        for (int u = 0; u < vector; u++) tile[i][j + u] = part[m][u];
      }
    } else {
      const int all = side * side / %(block)d, some = all < 8 ? all : 8;
      for (int m = 0; m < all; m += some) {
        %(T)s part[some];
        #pragma unroll
        for (int u = 0; u < some; u++) {
          const int k = threadIdx.x + (m + u) * %(block)d, i = k / side, j = k %% side;
          part[u] = x[min(i, tall - 1) * columns + min(j, wide - 1)];
        }
        #pragma unroll
        for (int u = 0; u < some; u++) {
          const int k = threadIdx.x + (m + u) * %(block)d;
          tile[k / side][k %% side] = part[u];
        }
      }
    }
    __syncthreads();
    if (rows %% vector == 0 && a.w[1] %% 16 == 0) {
      #pragma unroll
      for (int m = 0; m < turns; m++) {
        const int i = first_i + m * step, j = first_j;
        %(T)s part[vector];
        #pragma unroll
        for (int u = 0; u < vector; u++) part[u] = tile[j + u][i];
        if (i < wide && j < tall) mg_store<vector>((char *)(y + (i * rows + j)), part);
      }
    } else {
      #pragma unroll 8
      for (int m = 0; m < side * side / %(block)d; m++) {
        const int k = threadIdx.x + m * %(block)d, i = k / side, j = k %% side;
        if (i < wide && j < tall) y[i * rows + j] = tile[j][i];
      }
    }
    __syncthreads();
"""


def reorder(op: Reorder, node: Node) -> CudaKernel | None:
    """Return the kernel of a reorder of contiguous images, None where most of a tile is empty."""
    (x,) = node.inputs
    if x.ndim == node.ndim:
        return None
    pixels, (lanes,) = math.prod(x.shape[2:4]), (*node.shape[4:], *x.shape[4:])
    rows, columns = (lanes, pixels) if x.ndim == 4 else (pixels, lanes)
    vector = VECTOR // x.dtype.itemsize
    side = ACROSS * vector
    if min(rows, columns) < side // 4:
        return None
    tiles = x.size // (rows * columns) * -(-rows // side) * -(-columns // side)
    held = f"uint{8 * x.dtype.itemsize}_t"
    fill = {"T": held, "side": side, "vector": vector, "across": ACROSS}
    return written_kernel(node, TEXT, fill, tiles, (rows, columns), THREADS)


KERNELS: Kernels = {Reorder: reorder}
