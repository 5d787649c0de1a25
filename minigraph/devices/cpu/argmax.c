/* Return the index of the first maximum along an axis; NaN is larger than any number.

   If later axes follow, or rows are short, a vector has one element of each of many rows.  For a long
   row the maximum is found first, then its index.

   The argument block: threads, elements before the axis, along it and after it, then the operands.

   T            type of an element
   I            type of an index
   K            signed integer of the size of T if possible, so that vectors have the same number of
                elements
   WITH_MAXIMA  whether the maxima are a result too, before the indices
   BOOL         whether elements are bools, of which any byte but 0 is true */
#if BOOL
#define NAME_VALUE(v) (v > 1 ? 1 : v)
#else
#define NAME_VALUE(v) v
#endif
enum { NAME_ROWS = 256, NAME_SHORT = 48, NAME_LANES = 64 };
static inline void NAME_across_rows(const T *x, int64_t row_stride, int64_t stride, int64_t n,
                                    int64_t rows, I *y) {
  T best[NAME_ROWS];
  int32_t position[NAME_ROWS];
  for (int64_t k = 0; k < rows; k++) best[k] = NAME_VALUE(x[k * row_stride]), position[k] = 0;
  for (int64_t j = 1; j < n; j++) {
    const T *p = x + j * stride;
    #pragma GCC ivdep
    for (int64_t k = 0; k < rows; k++) {
      const T v = NAME_VALUE(p[k * row_stride]), m = best[k];
      const int larger = (v > m) | ((v != v) & (m == m));
      best[k] = larger ? v : m;
      position[k] = larger ? (int32_t)j : position[k];
    }
  }
  for (int64_t k = 0; k < rows; k++) y[k] = position[k];
}
static int64_t NAME_long_row(const T *p, int64_t n) {
  T lane[NAME_LANES];
  for (int k = 0; k < NAME_LANES; k++) lane[k] = NAME_VALUE(p[0]);
  int64_t j = 0;
  for (; j + NAME_LANES <= n; j += NAME_LANES) {
    #pragma GCC unroll 16
    #pragma GCC ivdep
    for (int k = 0; k < NAME_LANES; k++) {
      const T v = NAME_VALUE(p[j + k]);
      lane[k] = v > lane[k] || v != v ? v : lane[k];
    }
  }
  #pragma GCC ivdep
  for (int64_t k = 0; k < n - j; k++) {
    const T v = NAME_VALUE(p[j + k]);
    lane[k] = v > lane[k] || v != v ? v : lane[k];
  }
  #pragma GCC unroll 8
  for (int half = NAME_LANES / 2; half; half /= 2)
    for (int k = 0; k < half; k++)
      lane[k] = lane[half + k] > lane[k] || lane[half + k] != lane[half + k] ? lane[half + k] : lane[k];
  const T best = lane[0];
  const int is_nan = best != best;
  for (j = 0;; j += NAME_LANES) {
    const int64_t count = n - j < NAME_LANES ? n - j : NAME_LANES;
    K first = NAME_LANES;
    for (K k = 0; k < (K)count; k++) {
      const T v = NAME_VALUE(p[j + k]);
      const int equal = (v == best) | (is_nan & (v != v));
      const K position = equal ? k : NAME_LANES;
      first = position < first ? position : first; /* gcc does not vectorise one choice with two conditions */
    }
    if (first < NAME_LANES) return j + first;
  }
}
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], outer = a[1], n = a[2], inner = a[3];
  const T *x = (const T *)(slots[a[4]] + a[5]);
  I *y = (I *)(slots[a[6 + 2 * WITH_MAXIMA]] + a[7 + 2 * WITH_MAXIMA]);
  (void)threads;
  if (inner == 1 && n > NAME_SHORT) {
    #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t o = 0; o < outer; o++) {
      y[o] = NAME_long_row(x + o * n, n);
      if (WITH_MAXIMA) ((T *)(slots[a[6]] + a[7]))[o] = x[o * n + y[o]];
    }
    return 0;
  }
  const int64_t width = inner == 1 ? outer : inner, blocks = (width + NAME_ROWS - 1) / NAME_ROWS;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t task = 0; task < outer * inner / width * blocks; task++) {
    const int64_t o = task / blocks, first = task % blocks * NAME_ROWS;
    const int64_t rows = width - first < NAME_ROWS ? width - first : NAME_ROWS;
    if (inner == 1) {
      NAME_across_rows(x + first * n, n, 1, n, rows, y + first);
    } else {
      NAME_across_rows(x + o * n * inner + first, 1, inner, n, rows, y + o * inner + first);
    }
  }
  return 0;
}
#undef NAME_VALUE
