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
typedef struct { /* tiles of an image down and across; tiles that a strip has memory for */
  int64_t down, across, capacity;
} NAME_tiles;
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
/* Compare the magnitudes of the windows of a tile whose input pixels begin at (top, left).

   Return MG_MIXED if a window has much smaller pixels than the tile, but not zeros alone; else a mask of
   the windows of zeros, bit i * TILE + j.  There are `down` x `across` windows of `high` x `wide`
   pixels. */
#ifndef MG_MIXED
#define MG_MIXED (1 << 30)
#endif
MG_CONTRACT int32_t NAME_compare_magnitudes(const NAME_images *q, int64_t image, int64_t top,
                                            int64_t left, int64_t down, int64_t across, int64_t high,
                                            int64_t wide) {
  NAME_doubles squares[SIDE * SIDE] = {{0}}; /* in double: squares of floats neither under- nor overflow */
  double square[SIDE * SIDE] = {0}, total = 0;
  for (int64_t b = 0; b < q->blocks; b++) {
    const vec *x = q->pixels + (image * q->blocks + b) * q->h * q->w;
    for (int64_t i = 0; i < SIDE; i++)
      for (int64_t j = 0; j < SIDE; j++) {
        const int64_t row = top + i, column = left + j;
        if (row < 0 || row >= q->h || column < 0 || column >= q->w) continue;
        const NAME_doubles v = __builtin_convertvector(x[row * q->w + column], NAME_doubles);
        squares[i * SIDE + j] += v * v;
      }
  }
  for (int64_t p = 0; p < SIDE * SIDE; p++) {
    for (int l = 0; l < L; l++) square[p] += squares[p][l];
    total += square[p];
  }
  int32_t zeros = 0;
  for (int64_t i = 0; i < down; i++)
    for (int64_t j = 0; j < across; j++) {
      double sum = 0;
      if (top + i + high <= 0 || top + i >= q->h || left + j + wide <= 0 || left + j >= q->w)
        continue; /* padding alone */
      for (int64_t r = 0; r < high; r++)
        for (int64_t s = 0; s < wide; s++) sum += square[(i + r) * SIDE + j + s];
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
