/* Max pooling, forward or BACKWARD.

   For images [n, c, h, w] a thread takes the maximum over the rows of the windows, column by column,
   then over the columns of each window, for several rows of the output at a time, so that the inner
   loops are vectorised selects.  In the other layouts of `minigraph.ops.layout` a vector has LANES of a
   pixel, and a thread computes a row of the output window by window.

   The argument block: threads, planes, h, w, rows, columns, the padding before h and w, then the
   operands and the scratch memory; a plane is [h, w, LANES].  Window and stride are macros, so that
   strided loads become vector loads and shuffles.

   T            type of an element
   W            type of comparisons and sums, float for BFLOAT16 (which needs LANES above 1)
   LOWEST       smallest value of W
   MASK         integer of the size of W
   P            type of the result's indices of maxima in their windows
   INDEX        type of these indices in the inner loops
   IN_SCRATCH   whether a thread sums gradients in its scratch memory, and rounds a row after the last
                window that covers it
   ROW_WINDOWS  whether windows are parts of a row without borders, overlap or gaps between them
   CELLS        columns, of all rows of a pass, at most; the scratch memory holds SPAN
   LANES        elements of a pixel; a vector has BLOCK of them, a divisor
   WINDOW_H, WINDOW_W, STRIDE_H, STRIDE_W  the window and its stride */
#if BFLOAT16
#define WIDEN(x) mg_float_of_bits((uint32_t)(x) << 16)
#define NARROW(x) mg_bfloat16_of_float(x)
#define WIDEN_VECTOR(x) ((values)(__builtin_convertvector(x, bits) << 16))
#define NARROW_VECTOR(x) __builtin_convertvector((bits)(x) >> 16, stored)
#else
#define WIDEN(x) (x)
#define NARROW(x) (x)
#define WIDEN_VECTOR(x) (x)
#define NARROW_VECTOR(x) (x)
#endif
#if LANES > 1 && !BACKWARD
/* Store the maxima of BLOCK lanes, and their indices, over rows p0 to p1 and columns q0 to q1 of a
   window. */
static inline __attribute__((always_inline))
void NAME_window(const T *from, int64_t w, int64_t p0, int64_t p1, int64_t q0, int64_t q1, T *y,
                 P *indices) {
  /* Explicit vector types: gcc unrolls such short loops before it vectorises. */
  typedef T stored __attribute__((vector_size(BLOCK * sizeof(T))));
  typedef W values __attribute__((vector_size(BLOCK * sizeof(W))));
  typedef uint32_t bits __attribute__((vector_size(BLOCK * sizeof(uint32_t))));
  typedef MASK mask __attribute__((vector_size(BLOCK * sizeof(W))));
  typedef int32_t integers __attribute__((vector_size(BLOCK * sizeof(int32_t))));
  typedef P places __attribute__((vector_size(BLOCK * sizeof(P))));
  values best = (values){0} + LOWEST;
  integers index = (integers){0} + (int32_t)(p0 * WINDOW_W + q0);
  for (int64_t p = p0; p < p1; p++)
    for (int64_t q = q0; q < q1; q++) {
      stored pixel;
      memcpy(&pixel, from + (p * w + q) * LANES, sizeof pixel);
      const values v = WIDEN_VECTOR(pixel);
      const mask better = ~(v <= best) & (best == best);
      const integers index_mask = __builtin_convertvector(better, integers);
      best = (values)(((mask)v & better) | ((mask)best & ~better));
      index = ((int32_t)(p * WINDOW_W + q) & index_mask) | (index & ~index_mask);
    }
  const places stored_indices = __builtin_convertvector(index, places);
  const stored maxima = NARROW_VECTOR(best);
  memcpy(y, &maxima, sizeof maxima);
  memcpy(indices, &stored_indices, sizeof stored_indices);
}
#endif
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], planes = a[1], h = a[2], w = a[3], rows = a[4], columns = a[5];
  const int64_t top = a[6], left = a[7];
  (void)h, (void)threads;
#if BACKWARD
  const T *dy = (const T *)(slots[a[8]] + a[9]);
  const P *indices = (const P *)(slots[a[10]] + a[11]);
  T *dx = (T *)(slots[a[12]] + a[13]);
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t plane = 0; plane < planes; plane++) {
    T *out = dx + plane * h * w * LANES;
#if IN_SCRATCH
    W *to = (W *)(slots[a[14]] + a[15]) + omp_get_thread_num() * h * w * LANES;
    int64_t rounded = 0;
#else
    W *to = out;
#endif
    int64_t zeroed = 0;
    for (int64_t i = 0; i < rows; i++) {
      /* Zero rows just before the first window that covers them, so that they are in the cache. */
      const int64_t window_end = i * STRIDE_H - top + WINDOW_H;
      const int64_t end = window_end < h && i + 1 < rows ? window_end : h;
      if (zeroed < end) {
        memset(to + zeroed * w * LANES, 0, (end - zeroed) * w * LANES * sizeof(W));
        zeroed = end;
      }
      for (int64_t j = 0; j < columns; j++) {
        const int64_t corner = (i * STRIDE_H - top) * w + j * STRIDE_W - left;
        for (int64_t k = 0; k < LANES; k++) {
          const int64_t o = ((plane * rows + i) * columns + j) * LANES + k, index = indices[o];
          to[(corner + index + index / WINDOW_W * (w - WINDOW_W)) * LANES + k] += WIDEN(dy[o]);
        }
      }
#if IN_SCRATCH
      const int64_t next = (i + 1) * STRIDE_H - top;
      const int64_t complete = next < zeroed && i + 1 < rows ? next : zeroed;
      for (int64_t o = rounded * w * LANES; o < complete * w * LANES; o++)
        out[o] = NARROW(to[o]);
      if (complete > rounded) rounded = complete;
#endif
    }
  }
#else
  const T *x = (const T *)(slots[a[8]] + a[9]);
  T *y = (T *)(slots[a[10]] + a[11]);
  P *indices = (P *)(slots[a[12]] + a[13]);
#if LANES == 1
#define NO_OVERLAP (WINDOW_W <= STRIDE_W) /* the results of several rows are as in memory */
/* Replace the maximum m of the first columns of window j, and its index i, if column q has a larger
   element, or an equal one in an earlier row. */
#define TAKE_BETTER(m, i, q) { \
    const W v = cell[j * STRIDE_W + q]; \
    const INDEX new_index = (ROW_WINDOWS ? 0 : row_of_max[j * STRIDE_W + q] * WINDOW_W) + q; \
    const int earlier = (new_index < i) & ((v == m) | ((v != v) & (m != m))); \
    const int better = (v > m) | ((v != v) & (m == m)) | earlier; \
    m = better ? v : m; \
    i = better ? new_index : i; \
  }
  const int64_t units = planes * rows, most = CELLS / STRIDE_W - (WINDOW_W - 1) / STRIDE_W;
  const int64_t chunk = columns < most ? columns : most;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t t = 0; t < threads; t++) {
    char *const scratch = slots[a[14]] + a[15] + t * SPAN * 2 * (sizeof(W) + sizeof(INDEX));
    W *column_max = (W *)scratch, *buffer = column_max + SPAN;
    INDEX *row_of_max = (INDEX *)(buffer + SPAN), *index = row_of_max + SPAN;
    const int64_t end = units * (t + 1) / threads;
    for (int64_t c = 0; c < columns; c += chunk) {
      /* The windows cover `cells` columns (`strides` strides), of which x0 to x1 are in the image. */
      const int64_t n = columns - c < chunk ? columns - c : chunk, shift = c * STRIDE_W - left;
      const int64_t strides = n - 1 + (WINDOW_W + STRIDE_W - 1) / STRIDE_W, cells = strides * STRIDE_W;
      const int64_t x0 = shift < 0 ? -shift : 0, x1 = w - shift < cells ? w - shift : cells;
      for (int64_t u = units * t / threads, row_count; u < end; u += row_count) {
        row_count = (ROW_WINDOWS && cells < w) || n < columns ? 1 : CELLS / cells;
        if (row_count > end - u) row_count = end - u;
        const W *cell = ROW_WINDOWS ? (const W *)x + u * w + shift : column_max;
        for (int64_t g = 0; g < row_count && !ROW_WINDOWS; g++) {
          const int64_t row = (u + g) % rows * STRIDE_H - top;
          const int64_t p0 = row < 0 ? -row : 0, p1 = h - row < WINDOW_H ? h - row : WINDOW_H;
          const T *from = x + ((u + g) / rows * h + row) * w + shift;
          W *to = column_max + g * cells;
          INDEX *p = row_of_max + g * cells;
          for (int64_t j = 0; j < x0; j++) to[j] = LOWEST, p[j] = WINDOW_H;
          for (int64_t j = x1; j < cells; j++) to[j] = LOWEST, p[j] = WINDOW_H;
          for (int64_t j = x0; j < x1; j++) to[j] = from[p0 * w + j], p[j] = p0;
          for (int64_t r = p0 + 1; r < p1; r++) {
            #pragma GCC ivdep
            for (int64_t j = x0; j < x1; j++) {
              const W v = from[r * w + j], m = to[j];
              const int better = (v > m) | ((v != v) & (m == m));
              to[j] = better ? v : m;
              p[j] = better ? (INDEX)r : p[j];
            }
          }
        }
        W *best = NO_OVERLAP ? y + u * columns + c : buffer;
        #pragma GCC ivdep
        for (int64_t j = 0; j < row_count * strides; j++) {
          W m = cell[j * STRIDE_W];
          INDEX i = ROW_WINDOWS ? 0 : row_of_max[j * STRIDE_W] * WINDOW_W;
          if (WINDOW_W == 2) TAKE_BETTER(m, i, 1) /* gcc vectorises one column more, but not two */
          best[j] = m, index[j] = i;
        }
        for (int64_t q = 1; q < WINDOW_W && WINDOW_W > 2; q++) {
          #pragma GCC ivdep
          for (int64_t j = 0; j < row_count * strides; j++) {
            W m = best[j];
            INDEX i = index[j];
            TAKE_BETTER(m, i, q)
            best[j] = m, index[j] = i;
          }
        }
        for (int64_t g = 0; g < row_count; g++)
          for (int64_t j = 0; j < n; j++) {
            if (!NO_OVERLAP) y[(u + g) * columns + c + j] = best[g * strides + j];
            indices[(u + g) * columns + c + j] = index[g * strides + j];
          }
      }
    }
  }
#undef NO_OVERLAP
#undef TAKE_BETTER
#else
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t u = 0; u < planes * rows; u++) {
    const int64_t row = u % rows * STRIDE_H - top;
    const int64_t p0 = row < 0 ? -row : 0, p1 = h - row < WINDOW_H ? h - row : WINDOW_H;
    for (int64_t j = 0; j < columns; j++) {
      const int64_t column = j * STRIDE_W - left;
      const int64_t q0 = column < 0 ? -column : 0, q1 = w - column < WINDOW_W ? w - column : WINDOW_W;
      const T *from = x + ((u / rows * h + row) * w + column) * LANES;
      const int64_t o = (u * columns + j) * LANES;
      /* With constant bounds gcc unrolls the window. */
      if (p1 - p0 == WINDOW_H && q1 - q0 == WINDOW_W)
        for (int64_t k = 0; k < LANES; k += BLOCK)
          NAME_window(from + k, w, 0, WINDOW_H, 0, WINDOW_W, y + o + k, indices + o + k);
      else
        for (int64_t k = 0; k < LANES; k += BLOCK)
          NAME_window(from + k, w, p0, p1, q0, q1, y + o + k, indices + o + k);
    }
  }
#endif
#endif
  return 0;
}
#undef WIDEN
#undef NARROW
#undef WIDEN_VECTOR
#undef NARROW_VECTOR
