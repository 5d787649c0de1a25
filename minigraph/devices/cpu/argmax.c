/* The index of the first largest element along an axis; NaN counts as largest.

   Rows that lie beside each other, or are short, are compared in vectors of an element of each; of
   a long row first the largest element is found, then where it stands.

   The argument block: threads, elements before the axis, along it and after it, then the operands.

   T     type of an element
   I     type of an index
   K     signed integer as wide as most elements, so that both are vectors of one length
   BEST  whether the elements are a result, too, which precedes the indices
   BOOL  whether any byte but 0 is true */
#if BOOL
#define NAME_V(v) (v > 1 ? 1 : v)
#else
#define NAME_V(v) v
#endif
enum { NAME_ROWS = 256, NAME_SHORT = 48, NAME_LANES = 64 };
static inline void NAME_beside(const T *x, int64_t apart, int64_t step, int64_t n, int64_t rows,
                               I *y) {
  T most[NAME_ROWS];
  int32_t at[NAME_ROWS];
  for (int64_t k = 0; k < rows; k++) most[k] = NAME_V(x[k * apart]), at[k] = 0;
  for (int64_t j = 1; j < n; j++) {
    const T *p = x + j * step;
    #pragma GCC ivdep
    for (int64_t k = 0; k < rows; k++) {
      const T v = NAME_V(p[k * apart]), m = most[k];
      const int larger = (v > m) | ((v != v) & (m == m));
      most[k] = larger ? v : m;
      at[k] = larger ? (int32_t)j : at[k];
    }
  }
  for (int64_t k = 0; k < rows; k++) y[k] = at[k];
}
static int64_t NAME_along(const T *p, int64_t n) {
  T lane[NAME_LANES];
  for (int k = 0; k < NAME_LANES; k++) lane[k] = NAME_V(p[0]);
  int64_t j = 0;
  for (; j + NAME_LANES <= n; j += NAME_LANES) {
    #pragma GCC unroll 16
    #pragma GCC ivdep
    for (int k = 0; k < NAME_LANES; k++) {
      const T v = NAME_V(p[j + k]);
      lane[k] = v > lane[k] || v != v ? v : lane[k];
    }
  }
  #pragma GCC ivdep
  for (int64_t k = 0; k < n - j; k++) {
    const T v = NAME_V(p[j + k]);
    lane[k] = v > lane[k] || v != v ? v : lane[k];
  }
  #pragma GCC unroll 8
  for (int half = NAME_LANES / 2; half; half /= 2)
    for (int k = 0; k < half; k++)
      lane[k] = lane[half + k] > lane[k] || lane[half + k] != lane[half + k] ? lane[half + k] : lane[k];
  const T most = lane[0];
  const int nan = most != most;
  for (j = 0;; j += NAME_LANES) {
    const int64_t some = n - j < NAME_LANES ? n - j : NAME_LANES;
    K first = NAME_LANES;
    for (K k = 0; k < (K)some; k++) {
      const T v = NAME_V(p[j + k]);
      const int hit = (v == most) | (nan & (v != v));
      const K at = hit ? k : NAME_LANES;
      first = at < first ? at : first; /* of a choice under two conditions gcc makes no vectors */
    }
    if (first < NAME_LANES) return j + first;
  }
}
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], outer = a[1], n = a[2], inner = a[3];
  const T *x = (const T *)(slots[a[4]] + a[5]);
  I *y = (I *)(slots[a[6 + 2 * BEST]] + a[7 + 2 * BEST]);
  (void)threads;
  if (inner == 1 && n > NAME_SHORT) {
    #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t o = 0; o < outer; o++) {
      y[o] = NAME_along(x + o * n, n);
      if (BEST) ((T *)(slots[a[6]] + a[7]))[o] = x[o * n + y[o]];
    }
    return 0;
  }
  const int64_t width = inner == 1 ? outer : inner, blocks = (width + NAME_ROWS - 1) / NAME_ROWS;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t w = 0; w < outer * inner / width * blocks; w++) {
    const int64_t o = w / blocks, first = w % blocks * NAME_ROWS;
    const int64_t rows = width - first < NAME_ROWS ? width - first : NAME_ROWS;
    if (inner == 1) {
      NAME_beside(x + first * n, n, 1, n, rows, y + first);
    } else {
      NAME_beside(x + o * n * inner + first, 1, inner, n, rows, y + o * inner + first);
    }
  }
  return 0;
}
#undef NAME_V
