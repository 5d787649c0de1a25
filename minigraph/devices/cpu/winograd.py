"""Convolutions with windows of 3 x 3 by Winograd's algorithm, in C: oneDNN 3.2 has none.

Results are computed in tiles of 2 x 2 or 4 x 4.  The pixels that a tile is made of are transformed
to 16 or 36 points, the weights too; at each point the convolution is then a matrix product over the
channels, with 2.25 or 4 times fewer multiplications than there are without it.  The gradient for
the weights is the transposed algorithm: the products are over the tiles.

Tiles of 2 x 2 round as a direct convolution does.  For tiles of 4 x 4 the points are 0, 2/3, -2/3,
3/2, -3/2 and infinity: the error is four times that of a direct convolution, where it would be
eight times with Lavin and Gray's 1, -1, 2, -2 (root mean squares, 512 channels).  Errors are
relative to the largest pixels of a tile.  Where a result is NaN or infinite its tile is computed
again without the algorithm, which would spread that over the whole of it; many of those are slow.

Strides and dilations are 1, and images are in blocks of channels, see `minigraph.ops.layout`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from minigraph.autotune.candidate import Candidate
from minigraph.devices.cpu import compiler, onednn
from minigraph.devices.cpu.cook_toom import Matrix, matrices, statements, transposed
from minigraph.devices.cpu.kernel import KernelCall, NativeKernel, Place
from minigraph.devices.cpu.onednn import F32
from minigraph.devices.problem import Arrangement
from minigraph.graph import Array, Node, Op, Shape
from minigraph.jit.source import KernelSource
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut
from minigraph.program import KernelFailed

WINDOW = 3
POINTS = {
    2: [Fraction(p) for p in (0, 1, -1)],
    4: [Fraction(*p) for p in ((0, 1), (2, 3), (-2, 3), (3, 2), (-3, 2))],
}
NAMES = {f"winograd {tile}x{tile}": tile for tile in POINTS}  # the algorithms
# By lanes: how many tiles a product keeps in registers, two vectors of sums each, and in groups of
# how many those follow that are left over; the second divides the first.
ROWS = {8: (6, 2), 16: (12, 4)}
# Tiles of a strip, in whole groups.  OWN: each thread has strips of its own, which fit its second
# cache.  SHARED: all threads do a strip together, where transformed weights have more than LARGE
# bytes, so that not every thread reads all of them, or where there are too few tiles.
OWN, SHARED = 48, 96
LARGE = 4 << 20

# Macros, which CLOSE takes back: texts of other tiles may stand in the same unit.
OPEN = """
#define L %(lanes)d
#define R %(rows)d
#define NV %(vectors)d
#define TILE %(tile)d
#define SIDE (TILE + 2)
#define POINTS (SIDE * SIDE)
#define TAPS 9
#define vec NAME_vec
typedef float vec __attribute__((vector_size(L * 4), aligned(4), may_alias));
typedef struct { /* [n, blocks, h, w, L], and how far outside the first tile begins */
  vec *at;
  int64_t blocks, h, w, top, left;
} NAME_images;
typedef struct { /* of an image; room: for how many there is memory at once */
  int64_t down, across, room;
} NAME_tiles;
/* Products may be fused with sums here, as they are in any library's convolution. */
#if defined(__clang__)
#pragma clang fp contract(fast)
#define FAST static
#else
#define FAST static __attribute__((optimize("fp-contract=fast")))
#endif
#define ALIGNED __attribute__((aligned(64)))
FAST int NAME_finite(vec zeros) { /* which zero times a number is, if it is finite */
  float total = 0;
  for (int l = 0; l < L; l++) total += zeros[l];
  return total == 0;
}
"""

CLOSE = """
#undef L
#undef R
#undef NV
#undef TILE
#undef SIDE
#undef POINTS
#undef TAPS
#undef vec
#undef FAST
#undef ALIGNED
#if defined(__clang__)
#pragma clang fp contract(off)
#endif
"""

TRANSFORM = """
FAST inline __attribute__((always_inline))
void NAME_%(name)s(const vec *x, int64_t step, vec *y, int64_t gap) {
  %(statements)s
}
"""

# From pixels to points: v[point * gap + block * room].
SPREAD = """
FAST void NAME_spread_%(name)s(const NAME_images *q, const NAME_tiles *z, int64_t tile, vec *v,
                              int64_t gap) {
  enum { PATCH = %(patch)s };
  const int64_t image = tile / (z->down * z->across);
  const int64_t top = tile / z->across %% z->down * TILE - q->top;
  const int64_t left = tile %% z->across * TILE - q->left;
  const int inside = top >= 0 && left >= 0 && top + PATCH <= q->h && left + PATCH <= q->w;
  const vec *x = q->at + image * q->blocks * q->h * q->w;
  for (int64_t b = 0; b < q->blocks; b++, x += q->h * q->w, v += z->room) {
    vec pixels[PATCH * PATCH] ALIGNED, half[SIDE * PATCH] ALIGNED;
    if (!inside)
      for (int64_t i = 0; i < PATCH; i++)
        for (int64_t j = 0; j < PATCH; j++) {
          const int64_t row = top + i, column = left + j;
          const int there = row >= 0 && row < q->h && column >= 0 && column < q->w;
          pixels[i * PATCH + j] = there ? x[row * q->w + column] : (vec){0};
        }
    const vec *from = inside ? x + top * q->w + left : pixels;
    const int64_t step = inside ? q->w : PATCH;
    for (int64_t j = 0; j < PATCH; j++) NAME_%(name)s(from + j, step, half + j, PATCH);
    for (int64_t i = 0; i < SIDE; i++)
      NAME_%(name)s(half + i * PATCH, 1, v + i * SIDE * gap, gap);
  }
}
"""

# ---------------------------------------------------------------- forward, and to the images

# m[k * room + t], sums over the channels of v[tile t] u[NV blocks k], for so many tiles.
PRODUCTS = """
FAST void NAME_products_%(rows)d(int64_t blocks, int64_t room, const vec *v, const vec *u, vec *m) {
  %(zeros)s
  for (int64_t b = 0; b < blocks; b++, v += room)
    for (int64_t l = 0; l < L; l++, u += NV) {
      const float *x = (const float *)v + l;
      %(loads)s
      %(sums)s
    }
  %(stores)s
}
"""

# Argument block: see `_Work.sizes`; then padding; the weights' offset and steps in floats (from one
# output to the next, one input, one tap); whether there is a bias; places of x, w, bias, y, and
# scratch.
FILTER = """
typedef struct {
  NAME_images x, y;
  NAME_tiles z;
  const float *w, *bias;
  int64_t out, in, tap; /* steps of w */
  const vec *u;
} NAME_job;
/* Transform the weights of a block of outputs at one input. */
FAST void NAME_weights(const NAME_job *q, int64_t k, int64_t c, vec *u, int64_t gap) {
  const float *w = q->w + k * L * q->out + c * q->in;
  vec taps[TAPS] ALIGNED, half[3 * SIDE] ALIGNED;
  for (int64_t l = 0; l < L; l++)
    for (int64_t i = 0; i < TAPS; i++) ((float *)taps)[i * L + l] = w[l * q->out + i * q->tap];
  for (int64_t j = 0; j < 3; j++) NAME_kernel(taps + j, 3, half + j, 3);
  for (int64_t i = 0; i < SIDE; i++) NAME_kernel(half + 3 * i, 1, u + i * SIDE * gap, gap);
}
/* A tile of a block of outputs without the algorithm. */
FAST void NAME_direct(const NAME_job *q, int64_t image, int64_t top, int64_t left, int64_t k,
                     vec *y) {
  for (int64_t b = 0; b < q->x.blocks; b++) {
    const vec *x = q->x.at + (image * q->x.blocks + b) * q->x.h * q->x.w;
    for (int64_t l = 0; l < L; l++)
      for (int64_t i = 0; i < TAPS; i++) {
        const float *w = q->w + (b * L + l) * q->in + i * q->tap + k * L * q->out;
        vec tap;
        for (int64_t o = 0; o < L; o++) tap[o] = w[o * q->out];
        for (int64_t p = 0; p < TILE * TILE; p++) {
          const int64_t row = top + p / TILE + i / 3 - q->x.top;
          const int64_t column = left + p %% TILE + i %% 3 - q->x.left;
          if (row >= 0 && row < q->x.h && column >= 0 && column < q->x.w)
            y[p] += x[row * q->x.w + column][l] * tap;
        }
      }
  }
}
/* From points to pixels. */
FAST void NAME_gather(const NAME_job *q, int64_t tile, const vec *m, int64_t gap) {
  const int64_t image = tile / (q->z.down * q->z.across);
  const int64_t top = tile / q->z.across %% q->z.down * TILE, left = tile %% q->z.across * TILE;
  const int64_t high = q->y.h - top < TILE ? q->y.h - top : TILE;
  const int64_t wide = q->y.w - left < TILE ? q->y.w - left : TILE;
  for (int64_t k = 0; k < q->y.blocks; k++, m += q->z.room) {
    vec half[TILE * SIDE] ALIGNED, pixels[TILE * TILE] ALIGNED, odd = {0};
    for (int64_t j = 0; j < SIDE; j++) NAME_output(m + j * gap, SIDE * gap, half + j, SIDE);
    for (int64_t i = 0; i < TILE; i++) NAME_output(half + i * SIDE, 1, pixels + i * TILE, 1);
    for (int64_t p = 0; p < TILE * TILE; p++) odd += pixels[p] * 0;
    if (!NAME_finite(odd)) {
      memset(pixels, 0, sizeof pixels);
      NAME_direct(q, image, top, left, k, pixels);
    }
    const vec bias = q->bias ? ((const vec *)q->bias)[k] : (vec){0};
    vec *y = q->y.at + ((image * q->y.blocks + k) * q->y.h + top) * q->y.w + left;
    for (int64_t i = 0; i < high; i++)
      for (int64_t j = 0; j < wide; j++) y[i * q->y.w + j] = pixels[i * TILE + j] + bias;
  }
}
/* Do some tiles, as one of `team` threads, each of which comes here for the same ones. */
FAST void NAME_strip(const NAME_job *q, int64_t begin, int64_t count, vec *v, int64_t me,
                    int64_t team) {
  const int64_t in = q->x.blocks, panels = q->y.blocks / NV, room = q->z.room;
  const int64_t v_gap = in * room + 1, m_gap = q->y.blocks * room + 1;
  const int64_t u_gap = in * L * q->y.blocks + 1;
  vec *m = v + POINTS * v_gap;
  for (int64_t t = me * count / team; t < (me + 1) * count / team; t++)
    NAME_spread_input(&q->x, &q->z, begin + t, v + t, v_gap);
  if (team > 1) {
    #pragma omp barrier
  }
  for (int64_t i = me * POINTS * panels / team; i < (me + 1) * POINTS * panels / team; i++) {
    const int64_t p = i / panels, k = i %% panels;
    const vec *from = v + p * v_gap, *u = q->u + p * u_gap + k * in * L * NV;
    vec *to = m + p * m_gap + k * NV * room;
    int64_t t = 0;
    for (; t + R <= count; t += R) NAME_products_%(rows)d(in, room, from + t, u, to + t);
    /* Sums beyond the last tile are of unset memory, and never read: the room is whole groups. */
    for (; t < count; t += %(tail)d) NAME_products_%(tail)d(in, room, from + t, u, to + t);
  }
  if (team > 1) {
    #pragma omp barrier
  }
  for (int64_t t = me * count / team; t < (me + 1) * count / team; t++)
    NAME_gather(q, begin + t, m + t, m_gap);
}
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], shared = a[1], room = a[2], n = a[3], in = a[4], out = a[5];
  const int64_t *place = a + 17;
  const int64_t down = (a[8] + TILE - 1) / TILE, across = (a[9] + TILE - 1) / TILE;
  vec *u = (vec *)(slots[place[8]] + place[9]);
  const NAME_job q = {
    {(vec *)(slots[place[0]] + place[1]), in, a[6], a[7], a[10], a[11]},
    {(vec *)(slots[place[6]] + place[7]), out, a[8], a[9], 0, 0},
    {down, across, room},
    (const float *)(slots[place[2]] + place[3]) + a[12],
    a[16] ? (const float *)(slots[place[4]] + place[5]) : 0,
    a[13], a[14], a[15], u,
  };
  const int64_t tiles = n * down * across, u_gap = in * L * out + 1;
  vec *memory = u + POINTS * u_gap;
  #pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const int64_t me = omp_get_thread_num();
    #pragma omp for schedule(static)
    for (int64_t i = 0; i < out * in * L; i++) {
      const int64_t k = i / (in * L), c = i %% (in * L);
      NAME_weights(&q, k, c, u + (k / NV * in * L + c) * NV + k %% NV, u_gap);
    }
    if (shared) {
      for (int64_t b = 0; b < tiles; b += room)
        NAME_strip(&q, b, tiles - b < room ? tiles - b : room, memory, me, omp_get_num_threads());
    } else {
      vec *own = memory + me * POINTS * ((in + out) * room + 2);
      #pragma omp for schedule(dynamic)
      for (int64_t b = 0; b < tiles; b += room)
        NAME_strip(&q, b, tiles - b < room ? tiles - b : room, own, 0, 1);
    }
  }
  return 0;
}
"""

# ---------------------------------------------------------------- to the weights

# g[r * gap + k], sums over the tiles of v[lane r] d[NV blocks k], added to what is there already.
TILE_PRODUCTS = """
FAST void NAME_products(int64_t count, int64_t room, const vec *v, const vec *d, vec *g,
                       int64_t gap, int begun) {
  %(zeros)s
  for (int64_t t = 0; t < count; t++, d++) {
    const float *x = (const float *)(v + t);
    %(loads)s
    %(sums)s
  }
  if (begun) {
    %(adds)s
  }
  %(stores)s
}
"""

# Argument block: see `_Work.sizes`; then padding; places of dy, x, dw, scratch.
GRADIENT = """
typedef struct {
  NAME_images x, dy;
  NAME_tiles z;
  float *w;
} NAME_job;
/* The gradient of a block of outputs at one input without the algorithm. */
FAST void NAME_direct(const NAME_job *q, int64_t n, int64_t k, int64_t c, vec *taps) {
  for (int64_t image = 0; image < n; image++) {
    const vec *x = q->x.at + (image * q->x.blocks + c / L) * q->x.h * q->x.w;
    const vec *dy = q->dy.at + (image * q->dy.blocks + k) * q->dy.h * q->dy.w;
    for (int64_t p = 0; p < q->dy.h * q->dy.w; p++)
      for (int64_t i = 0; i < TAPS; i++) {
        const int64_t row = p / q->dy.w + i / 3 - q->x.top;
        const int64_t column = p %% q->dy.w + i %% 3 - q->x.left;
        if (row >= 0 && row < q->x.h && column >= 0 && column < q->x.w)
          taps[i] += x[row * q->x.w + column][c %% L] * dy[p];
      }
  }
}
/* From points, summed over those who have a sum, to the taps of a block of outputs at one input. */
FAST void NAME_taps(const NAME_job *q, int64_t n, int64_t k, int64_t c, const vec *g, int64_t gap,
                   int64_t sums) {
  vec points[POINTS] ALIGNED, half[3 * SIDE] ALIGNED, taps[TAPS] ALIGNED, odd = {0};
  for (int64_t p = 0; p < POINTS; p++) {
    points[p] = g[p * gap];
    for (int64_t s = 1; s < sums; s++) points[p] += g[(s * POINTS + p) * gap];
  }
  for (int64_t j = 0; j < SIDE; j++) NAME_kernel(points + j, SIDE, half + j, SIDE);
  for (int64_t i = 0; i < 3; i++) NAME_kernel(half + i * SIDE, 1, taps + 3 * i, 1);
  for (int64_t i = 0; i < TAPS; i++) odd += taps[i] * 0;
  if (!NAME_finite(odd)) {
    memset(taps, 0, sizeof taps);
    NAME_direct(q, n, k, c, taps);
  }
  for (int64_t l = 0; l < L; l++)
    for (int64_t i = 0; i < TAPS; i++)
      q->w[((k * L + l) * q->x.blocks * L + c) * TAPS + i] = taps[i][l];
}
/* Add some tiles to the sums g, as one of `team` threads, each of which comes for the same ones. */
FAST void NAME_strip(const NAME_job *q, int64_t begin, int64_t count, vec *v, vec *g, int begun,
                    int64_t me, int64_t team) {
  const int64_t in = q->x.blocks, out = q->dy.blocks, room = q->z.room;
  const int64_t v_gap = in * room + 1, d_gap = out * room + 1, g_gap = in * L * out + 1;
  vec *d = v + POINTS * v_gap;
  for (int64_t t = me * count / team; t < (me + 1) * count / team; t++) {
    NAME_spread_input(&q->x, &q->z, begin + t, v + t, v_gap);
    NAME_spread_result(&q->dy, &q->z, begin + t, d + t, d_gap);
  }
  if (team > 1) {
    #pragma omp barrier
  }
  for (int64_t i = me * POINTS * in / team; i < (me + 1) * POINTS * in / team; i++) {
    const int64_t p = i / in, b = i %% in;
    for (int64_t k = 0; k < out; k += NV)
      for (int64_t r = 0; r < L; r += R)
        NAME_products(count, room, (vec *)((float *)(v + p * v_gap + b * room) + r),
                      d + p * d_gap + k * room, g + p * g_gap + (b * L + r) * out + k, out, begun);
  }
  if (team > 1) {
    #pragma omp barrier
  }
}
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], shared = a[1], room = a[2], n = a[3], in = a[4], out = a[5];
  const int64_t *place = a + 12;
  const int64_t down = (a[8] + TILE - 1) / TILE, across = (a[9] + TILE - 1) / TILE;
  const NAME_job q = {
    {(vec *)(slots[place[2]] + place[3]), in, a[6], a[7], a[10], a[11]},
    {(vec *)(slots[place[0]] + place[1]), out, a[8], a[9], 0, 0},
    {down, across, room},
    (float *)(slots[place[4]] + place[5]),
  };
  vec *sums = (vec *)(slots[place[6]] + place[7]);
  const int64_t tiles = n * down * across, g_gap = in * L * out + 1;
  const int64_t strips = (tiles + room - 1) / room;
  #pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
    vec *memory = sums + (shared ? 1 : all) * POINTS * g_gap;
    int64_t first = 0, last = strips;
    if (!shared) {
      first = me * strips / all;
      last = (me + 1) * strips / all;
      memory += me * POINTS * ((in + out) * room + 2);
    }
    vec *g = sums + (shared ? 0 : me) * POINTS * g_gap;
    for (int64_t s = first; s < last; s++) {
      const int64_t count = tiles - s * room < room ? tiles - s * room : room;
      NAME_strip(&q, s * room, count, memory, g, s > first, shared ? me : 0, shared ? all : 1);
    }
    #pragma omp barrier
    #pragma omp for schedule(static)
    for (int64_t i = 0; i < in * L * out; i++)
      NAME_taps(&q, n, i %% out, i / out, sums + i, g_gap, shared ? 1 : all);
  }
  return 0;
}
"""


# ---------------------------------------------------------------- the texts


def _transform(name: str, matrix: Matrix) -> str:
    return TRANSFORM % {"name": name, "statements": "\n  ".join(statements(matrix))}


def _products(rows: int, vectors: int, x: str, factor: str, result: str) -> dict[str, object]:
    """Return the parts of a loop that keeps the sums of so many rows and vectors in registers."""
    pairs = list(itertools.product(range(rows), range(vectors)))
    where = [{"r": r, "j": j} for r, j in pairs]
    return {
        "rows": rows,
        "zeros": "\n  ".join(f"vec s{r}_{j} = {{0}};" for r, j in pairs),
        "loads": " ".join(f"const vec f{j} = {factor % {'j': j}};" for j in range(vectors)),
        "sums": " ".join(f"s{r}_{j} += {x % {'r': r}} * f{j};" for r, j in pairs),
        "adds": " ".join(f"s{at['r']}_{at['j']} += {result % at};" for at in where),
        "stores": "\n  ".join(f"{result % at} = s{at['r']}_{at['j']};" for at in where),
    }


@functools.cache
def _filter(tile: int, lanes: int, vectors: int) -> KernelSource:
    """Return the text that computes images."""
    rows, tail = ROWS[lanes]
    at, g, bt = matrices(tile, WINDOW, POINTS[tile])
    fill = {"lanes": lanes, "rows": rows, "vectors": vectors, "tile": tile, "tail": tail}
    operands = "x[%(r)d * L]", "u[%(j)d]", "m[%(j)d * room + %(r)d]"
    parts = [
        OPEN % fill,
        _transform("input", bt),
        _transform("output", at),
        _transform("kernel", g),
        SPREAD % {"name": "input", "patch": "SIDE"},
        *(PRODUCTS % _products(n, vectors, *operands) for n in (rows, tail)),
        FILTER % fill,
        CLOSE,
    ]
    return KernelSource("".join(parts))


@functools.cache
def _gradient(tile: int, lanes: int, vectors: int) -> KernelSource:
    """Return the text that computes the weights' gradients."""
    rows = lanes // 2  # a divisor; with two vectors of sums each, registers are left for operands
    at, g, bt = matrices(tile, WINDOW, POINTS[tile])
    fill = {"lanes": lanes, "rows": rows, "vectors": vectors, "tile": tile}
    operands = "x[%(r)d]", "d[%(j)d * room]", "g[%(r)d * gap + %(j)d]"
    parts = [
        OPEN % fill,
        _transform("input", bt),
        _transform("result", transposed(at)),
        _transform("kernel", transposed(g)),
        SPREAD % {"name": "input", "patch": "SIDE"},
        SPREAD % {"name": "result", "patch": "TILE"},
        TILE_PRODUCTS % _products(rows, vectors, *operands),
        GRADIENT % {},
        CLOSE,
    ]
    return KernelSource("".join(parts))


# ---------------------------------------------------------------- kernels


def algorithms(node: Node) -> list[str]:
    """Return the names of those that compute `node`."""
    op = node.op
    if not isinstance(op, LaidOut):
        return []
    match op.plain:
        case Conv2dBackwardWeights(conv, window):
            images = op.lanes_in
        case Conv2d() | Conv2dBackwardData():
            conv = op.plain if isinstance(op.plain, Conv2d) else op.plain.conv
            window, images = node.inputs[1].shape, (op.lanes_in[0], *op.lanes_out)
        case _:
            return []
    fits = (
        all(spec.dtype == F32 and spec.size for spec in (node.spec, *(x.spec for x in node.inputs)))
        and window[2:] == (WINDOW, WINDOW)
        and conv.stride == conv.dilation == (1, 1)
        and conv.groups == 1
        and max(conv.padding) < WINDOW
        and set(images) == {onednn.block()}
    )
    return list(NAMES) if fits else []


def candidates(arrangement: Arrangement, threads: int) -> Iterator[Candidate]:
    """Yield the algorithms that compute a node, if there is a compiler."""
    node, _, layouts = arrangement
    for algorithm in algorithms(node) if compiler.compiler() else ():
        yield Candidate(algorithm, layouts, functools.partial(kernel, node, algorithm, threads))


def kernel(node: Node, algorithm: str, threads: int) -> NativeKernel:
    """Return the kernel of one of the `algorithms` for `node`."""
    op: Op = node.op.plain  # type: ignore[attr-defined]
    if isinstance(op, Conv2dBackwardWeights):
        return _to_weights(node, op.conv, algorithm, threads)
    assert isinstance(op, Conv2d | Conv2dBackwardData)
    return _to_images(node, op, algorithm, threads)


def _to_images(
    node: Node, op: Conv2d | Conv2dBackwardData, algorithm: str, threads: int
) -> NativeKernel:
    x, w, *bias = node.inputs
    inputs = w.shape[1]
    if isinstance(op, Conv2dBackwardData):
        # A convolution of dy with the weights turned by 180 degrees, inputs and outputs exchanged.
        padding = [WINDOW - 1 - p for p in op.conv.padding]
        steps = WINDOW * WINDOW - 1, WINDOW * WINDOW, inputs * WINDOW * WINDOW, -1
    else:
        padding = list(op.padding)
        steps = 0, inputs * WINDOW * WINDOW, WINDOW * WINDOW, 1
    work = _Work(NAMES[algorithm], x.shape, node.shape, threads)
    values = [*work.sizes, *padding, *steps, len(bias)]

    def block(ins: Sequence[Place], outs: Sequence[Place], scratch: Place) -> list[int]:
        places = (*ins[:2], ins[-1], *outs, scratch)
        return [*values, *(v for place in places for v in place)]

    source = _filter(work.tile, work.lanes, work.vectors)
    vectors = work.weights + work.teams * work.space
    return _kernel(node, algorithm, KernelCall(source, block), vectors * work.lanes)


def _to_weights(node: Node, conv: Conv2d, algorithm: str, threads: int) -> NativeKernel:
    dy, x = (operand.shape for operand in node.inputs)
    work = _Work(NAMES[algorithm], x, dy, threads)
    values = [*work.sizes, *conv.padding]

    def block(ins: Sequence[Place], outs: Sequence[Place], scratch: Place) -> list[int]:
        return [*values, *(v for place in (*ins, *outs, scratch) for v in place)]

    source = _gradient(work.tile, work.lanes, work.vectors)
    vectors = work.teams * (work.weights + work.space)
    return _kernel(node, algorithm, KernelCall(source, block), vectors * work.lanes)


def _kernel(node: Node, algorithm: str, call: KernelCall, floats: int) -> NativeKernel:
    return WinogradKernel(node, [call], floats * F32.itemsize, algorithm=algorithm)


class WinogradKernel(NativeKernel):
    """Fails where the compiler did, so that what was measured next takes its place."""

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], scratch: Array) -> None:
        raise KernelFailed(f"{self.name} could not be compiled")


class _Work:
    """How the work of a convolution from images `x` to images `y` is divided.

    teams    how many work for themselves: all threads, each of which then has a strip, since its
             sums would be unset without one; or 1 where they do every strip together
    room     tiles of a strip
    vectors  blocks of outputs that are done at once
    weights  vectors that transformed weights take
    space    vectors that the points of a strip take
    sizes    how an argument block begins: threads, whether they share strips, room; images, blocks
             of x and y; the sides of both
    """

    def __init__(self, tile: int, x: Shape, y: Shape, threads: int) -> None:
        self.tile = tile
        self.lanes = x[4]
        self.vectors = 1 if y[1] % 2 else 2
        points = (tile + WINDOW - 1) ** 2
        tiles = x[0] * math.ceil(y[2] / tile) * math.ceil(y[3] / tile)
        self.weights = points * (x[1] * self.lanes * y[1] + 1)
        own = self.weights * self.lanes * F32.itemsize <= LARGE and tiles >= threads * OWN
        self.teams = threads if own else 1
        _, tail = ROWS[self.lanes]
        self.room = OWN if own else min(SHARED, math.ceil(tiles / tail) * tail)
        self.space = points * ((x[1] + y[1]) * self.room + 2)
        shared = int(self.teams == 1)
        self.sizes = [threads, shared, self.room, x[0], x[1], y[1], *x[2:4], *y[2:4]]
