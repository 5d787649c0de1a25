/* A product x y, whose elements an elementwise kernel may take tile by tile.

   Tiles have R rows and as many columns as fit the second cache.  While the products of a tile are
   computed, what the elementwise kernel will read there is fetched.

   The argument block: threads, rows, columns, sums, columns of a tile; of x, then y: slot, offset,
   and how far the next row and column are, in floats; slot and offset of the scratch memory, which
   begins with the rows of all tiles, and how many vectors of the rest a thread has; then the block
   of the elementwise kernel, whose first operand is the tile: see `jit/kernel.py`.  Where there is
   none, slot and offset of the result; whether there is a bias, its slot and offset.

   L     floats of a vector
   R     rows of a tile
   CHUNK tiles whose rows are brought side by side at once
   NV    vectors of a row that a product keeps in registers
   STRETCH products that are added up one after the other
   PLAIN whether there is no elementwise kernel
   COUNT how many operands it has
   WORDS of its block
   FETCH statements that fetch what it reads in `rows` rows from column `c` on */
typedef float NAME_vec __attribute__((vector_size(L * 4), aligned(4), may_alias));
#pragma clang fp contract(fast)
PRODUCTS
#pragma clang fp contract(off)
/* Columns of y, from `first` on, as vectors that follow each other along the sums. */
static void NAME_panel(const float *y, int64_t down, int64_t across, int64_t sums, int64_t first,
                       int64_t columns, vec *panel) {
  const int64_t whole = (columns + NV * L - 1) / (NV * L) * (NV * L);
  for (int64_t t = 0; t < sums; t++)
    for (int64_t c = 0; c < whole; c += L) {
      const float *from = y + t * down + (first + c) * across;
      vec v = {0};
      if (columns - c >= L && across == 1) v = *(const vec *)from;
      else
        for (int64_t l = 0; l < L && l < columns - c; l++) v[l] = from[l * across];
      panel[c / L * sums + t] = v;
    }
}
/* The rows of some tiles of x, which has m: at each sum the elements of a tile's rows. */
static void NAME_rows(const float *x, int64_t down, int64_t across, int64_t sums, int64_t m,
                      int64_t tile, int64_t tiles, vec *left) {
  for (int64_t t = 0; t < sums; t++)
    for (int64_t i = tile; i < tiles; i++) {
      const int64_t rows = m - i * R < R ? m - i * R : R;
      vec v = {0};
      for (int64_t r = 0; r < rows; r++) v[r] = x[(i * R + r) * down + t * across];
      left[i * sums + t] = v;
    }
}
/* What an operand has in the rows of a tile from some byte of a row on. */
static inline void NAME_fetch(const int64_t *operand, char **slots, int64_t rows, int64_t from,
                              int64_t bytes) {
  const char *p = slots[operand[0]] + operand[1] + from;
  for (int64_t r = 0; r < rows; r++) mg_fetch(p + r * operand[3], bytes);
}
#if PLAIN
/* Write a tile, with the bias added, from some row and column of the result on. */
static void NAME_put(const int64_t *after, char **slots, const vec *tile, int64_t gap, int64_t n,
                     int64_t row, int64_t column, int64_t rows, int64_t columns) {
  float *y = (float *)(slots[after[0]] + after[1]) + row * n + column;
  const float *bias = (const float *)(slots[after[3]] + after[4]) + column;
  for (int64_t r = 0; r < rows; r++, tile += gap, y += n) {
    const float *from = (const float *)tile;
    if (!after[2]) memcpy(y, from, columns * sizeof *y);
    else
      for (int64_t c = 0; c < columns; c++) y[c] = from[c] + bias[c];
  }
}
#endif
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], m = a[1], n = a[2], sums = a[3], wide = a[4];
  const float *x = (const float *)(slots[a[5]] + a[6]), *y = (const float *)(slots[a[9]] + a[10]);
  const int64_t *after = a + 16, gap = wide / L + 1;
  const int64_t down = (m + R - 1) / R, across = (n + wide - 1) / wide;
  vec *left = (vec *)(slots[a[13]] + a[14]);
  #pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const int64_t me = omp_get_thread_num(), team = omp_get_num_threads();
    vec *panel = left + down * sums + me * a[15], *tile = panel + wide / L * sums;
    int64_t begun = -1;
#if !PLAIN
    int64_t block[WORDS], *extent = block + 8, *operand = block + 10;
    memcpy(block, after, sizeof block);
#endif
    #pragma omp for schedule(static)
    for (int64_t i = 0; i < down; i += CHUNK)
      NAME_rows(x, a[7], a[8], sums, m, i, down - i < CHUNK ? down : i + CHUNK, left);
    for (int64_t i = me * down * across / team; i < (me + 1) * down * across / team; i++) {
      const int64_t row = i % down * R, column = i / down * wide;
      const int64_t rows = m - row < R ? m - row : R;
      const int64_t columns = n - column < wide ? n - column : wide;
      if (column != begun) NAME_panel(y, a[11], a[12], sums, column, columns, panel);
      begun = column;
#if !PLAIN
      for (int64_t o = 0; o < COUNT; o++) {
        const int64_t *step = operand + 5 * o + 3;
        operand[5 * o + 1] = after[10 + 5 * o + 1] + row * step[0] + column * step[1];
      }
      operand[1] = (char *)tile - slots[a[13]];
      extent[0] = rows;
      extent[1] = columns;
#endif
      for (int64_t c = 0; c < columns; c += NV * L) {
        FETCH
        for (int64_t t = 0; t < sums; t += STRETCH)
          NAME_products(sums - t < STRETCH ? sums - t : STRETCH, sums, left + row / R * sums + t,
                        panel + c / L * sums + t, tile + c / L, gap, t > 0);
      }
#if PLAIN
      NAME_put(after, slots, tile, gap, n, row, column, rows, columns);
#else
      NAME_units(block, slots, 0, 1, 0, 0);
#endif
    }
  }
  return 0;
}
