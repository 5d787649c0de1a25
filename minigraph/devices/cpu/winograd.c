/* The part that the texts of Winograd's algorithm share; `winograd.py` describes the algorithm.

   L          lanes: the channels of a block
   TILE       pixels of a tile of results on each side
   R          rows of the micro-kernel: tiles, or lanes
   NV         columns of the micro-kernel: blocks of outputs
   WINDOW     taps of the weights on each side
   SIDE       input pixels of a tile on each side: TILE + WINDOW - 1
   POINTS     SIDE * SIDE
   TAPS       WINDOW * WINDOW
   MAX_RATIO  largest ratio of the sum of squares of a tile's input pixels to that of one result's */
#ifndef MG_ALIGNED
#define MG_ALIGNED __attribute__((aligned(64)))
/* Iterate over the share of `thread` of `count` indices; MG_WAIT is a barrier of the team. */
#define MG_SHARE(i, count) int64_t i = thread * (count) / team; i < (thread + 1) * (count) / team; i++
#define MG_WAIT if (team > 1) { _Pragma("omp barrier") }
#endif
#pragma clang fp contract(fast)
typedef float NAME_vec __attribute__((vector_size(L * 4), aligned(4), may_alias));
typedef double NAME_doubles __attribute__((vector_size(L * 8)));
typedef struct { /* [n, blocks, h, w, L], and the padding at the top and on the left */
  vec *pixels;
  int64_t blocks, h, w, top, left;
} NAME_images;
typedef struct { /* images in rows and columns, as one large image, and the tiles of that */
  int64_t rows, columns; /* images */
  int64_t height, width; /* pixels of results from the begin of an image to that of the next one */
  int64_t spans; /* whether a tile may hold pixels of several images */
  int64_t across, capacity; /* tiles in a row; tiles that a strip has memory for */
} NAME_tiles;
typedef struct { /* the pixels of a tile; their offsets are relative to a block of the first image */
  int64_t corner; /* of the first pixel, which may be outside of its image */
  int whole; /* whether all pixels are of one image */
  int64_t rows[SIDE], columns[SIDE]; /* the sum of two is an offset, or negative outside of all images */
} NAME_patch;
/* Set the offsets of `count` pixels along an axis: from pixel `begin` of an image on.

   size    pixels of an image
   period  pixels from an image to the next one, of `images`
   spans   whether pixels may be of the next images
   step    offset from an image to the next one; `stride` is that from a pixel to the next one */
MG_CONTRACT void NAME_set_offsets(int64_t image, int64_t begin, int64_t size, int64_t period, int64_t images,
                                  int64_t spans, int64_t step, int64_t stride, int64_t count,
                                  int64_t *offsets) {
  for (int64_t i = 0; i < count; i++) {
    int64_t pixel = begin + i, at = image;
    for (; spans && pixel >= period; pixel -= period) at++;
    const int inside = pixel >= 0 && pixel < size && at < images;
    offsets[i] = inside ? at * step + pixel * stride : INT64_MIN / 2;
  }
}
/* Set the pixels of a tile of `side` x `side` pixels; of a whole one, the rows and columns only if `all`. */
MG_CONTRACT inline __attribute__((always_inline))
void NAME_locate(const NAME_images *q, const NAME_tiles *z, int64_t tile, int64_t side, int all,
                 NAME_patch *patch) {
  const int64_t first = tile / z->across * TILE, second = tile % z->across * TILE;
  const int64_t row = first / z->height, column = second / z->width; /* of the image */
  const int64_t top = first % z->height - q->top, left = second % z->width - q->left;
  const int64_t image = q->blocks * q->h * q->w;
  patch->corner = (row * z->columns + column) * image + top * q->w + left;
  patch->whole = top >= 0 && left >= 0 && top + side <= q->h && left + side <= q->w;
  if (patch->whole && !all) return;
  NAME_set_offsets(row, top, q->h, z->height, z->rows, z->spans, z->columns * image, q->w, side, patch->rows);
  NAME_set_offsets(column, left, q->w, z->width, z->columns, z->spans, image, 1, side, patch->columns);
}
/* Prefetch `side` x `side` pixels of the next block or tile, which may be outside of an image.

   It is always inlined: gcc drops calls of a function that only prefetches, as one without effects. */
MG_CONTRACT inline __attribute__((always_inline))
void NAME_prefetch(const vec *x, int64_t width, int64_t side, int write) {
  for (int64_t i = 0; i < side; i++)
    for (int64_t j = 0; j < side * L; j += 16) {
      const float *pixel = (const float *)(x + i * width) + j;
      if (write) __builtin_prefetch(pixel, 1);
      else __builtin_prefetch(pixel, 0);
    }
}
/* Compare the magnitudes of windows of a tile with that of the tile.

   x, y     pixels of the tile, and its results
   outer    windows on each side of the tile
   inner    pixels on each side of a window
   results  whether each window has the pixels of a result; otherwise, those that a tap multiplies by dy

   Return MG_MIXED if a window has much smaller pixels than the tile, but not zeros alone; else a mask of
   the windows of zeros, bit i * TILE + j.  Windows of padding alone are left out. */
#ifndef MG_MIXED
#define MG_MIXED (1 << 30)
#endif
MG_CONTRACT int32_t NAME_compare_magnitudes(const NAME_images *q, const NAME_patch *x, const NAME_patch *y,
                                            int64_t outer, int64_t inner, int results) {
  NAME_doubles squares[SIDE * SIDE] = {{0}}; /* in double: squares of floats neither under- nor overflow */
  double square[SIDE * SIDE] = {0}, total = 0;
  for (int64_t b = 0; b < q->blocks; b++)
    for (int64_t p = 0; p < SIDE * SIDE; p++) {
      const int64_t offset = x->rows[p / SIDE] + x->columns[p % SIDE];
      if (offset < 0) continue;
      const vec pixel = q->pixels[b * q->h * q->w + offset];
      const NAME_doubles v = __builtin_convertvector(pixel, NAME_doubles);
      squares[p] += v * v;
    }
  for (int64_t p = 0; p < SIDE * SIDE; p++) {
    for (int l = 0; l < L; l++) square[p] += squares[p][l];
    total += square[p];
  }
  int32_t zeros = 0;
  for (int64_t i = 0; i < outer; i++)
    for (int64_t j = 0; j < outer; j++) {
      double sum = 0;
      int padding = 1;
      for (int64_t r = 0; r < inner; r++)
        for (int64_t s = 0; s < inner; s++) {
          if (y->rows[results ? i : r] + y->columns[results ? j : s] < 0) continue;
          if (x->rows[i + r] + x->columns[j + s] < 0) continue;
          padding = 0;
          sum += square[(i + r) * SIDE + j + s];
        }
      if (padding) continue;
      if (sum == 0) zeros |= 1 << (i * TILE + j);
      else if (sum * MAX_RATIO < total) return MG_MIXED;
    }
  return zeros;
}
MG_CONTRACT int NAME_finite(vec zeros) { /* whether numbers are finite, given each times 0 */
  float total = 0;
  for (int l = 0; l < L; l++) total += zeros[l];
  return total == 0;
}
