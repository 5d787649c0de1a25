/* What both texts of Winograd's algorithm begin with; `winograd.py` says how it works.

   L      lanes, which are channels of a block
   TILE   pixels that a tile of results has on each side
   R      tiles, or lanes, whose sums a product keeps in registers
   NV     blocks of outputs whose sums it keeps
   WINDOW taps of the weights on each side
   SIDE   TILE + WINDOW - 1, the pixels that a tile is made of, on each side
   POINTS SIDE * SIDE
   TAPS   WINDOW * WINDOW
   RANGE  how many times the sum of squares of a tile's pixels may be that of the pixels that one of
          its results is made of */
#ifndef MG_ALIGNED
#define MG_ALIGNED __attribute__((aligned(64)))
/* The share that thread `me` of `team` has of `count` indices; all of them wait for each other. */
#define MG_SHARE(i, count) int64_t i = me * (count) / team; i < (me + 1) * (count) / team; i++
#define MG_WAIT if (team > 1) { _Pragma("omp barrier") }
#endif
#pragma clang fp contract(fast)
typedef float NAME_vec __attribute__((vector_size(L * 4), aligned(4), may_alias));
typedef double NAME_wide __attribute__((vector_size(L * 8)));
typedef struct { /* [n, blocks, h, w, L], and how far outside the first tile begins */
  vec *at;
  int64_t blocks, h, w, top, left;
} NAME_images;
typedef struct { /* of an image; room: for how many there is memory at once */
  int64_t down, across, room;
} NAME_tiles;
/* Fetch `side` rows of as many pixels, which may lie outside of an image: the next block's, or tile's.

   gcc takes a function that only fetches for one that does nothing, and drops calls of it. */
MG_FAST inline __attribute__((always_inline))
void NAME_fetch(const vec *x, int64_t width, int64_t side, int write) {
  for (int64_t i = 0; i < side; i++)
    for (int64_t j = 0; j < side * L; j += 16) {
      const float *pixel = (const float *)(x + i * width) + j;
      if (write) __builtin_prefetch(pixel, 1);
      else __builtin_prefetch(pixel, 0);
    }
}
/* Of the windows of a tile that is made of the pixels from (top, left) on: how they differ.

   Bits of windows whose pixels are all 0, as i * TILE + j; MG_MIXED where another one has much smaller
   pixels than the tile.  There are `down` by `across` windows of `high` by `wide` pixels. */
#ifndef MG_MIXED
#define MG_MIXED (1 << 30)
#endif
MG_FAST int32_t NAME_range(const NAME_images *q, int64_t image, int64_t top, int64_t left,
                           int64_t down, int64_t across, int64_t high, int64_t wide) {
  NAME_wide squares[SIDE * SIDE] = {{0}}; /* in double the square of no float is 0 or infinite */
  double square[SIDE * SIDE] = {0}, total = 0;
  for (int64_t b = 0; b < q->blocks; b++) {
    const vec *x = q->at + (image * q->blocks + b) * q->h * q->w;
    for (int64_t i = 0; i < SIDE; i++)
      for (int64_t j = 0; j < SIDE; j++) {
        const int64_t row = top + i, column = left + j;
        if (row < 0 || row >= q->h || column < 0 || column >= q->w) continue;
        const NAME_wide v = __builtin_convertvector(x[row * q->w + column], NAME_wide);
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
        continue; /* nothing but padding */
      for (int64_t r = 0; r < high; r++)
        for (int64_t s = 0; s < wide; s++) sum += square[(i + r) * SIDE + j + s];
      if (sum == 0) zeros |= 1 << (i * TILE + j);
      else if (sum * RANGE < total) return MG_MIXED;
    }
  return zeros;
}
MG_FAST int NAME_finite(vec zeros) { /* which zero times a number is, if it is finite */
  float total = 0;
  for (int l = 0; l < L; l++) total += zeros[l];
  return total == 0;
}
