/* Cumulative sums or products along an axis, or the recurrence y[j] = x[j] + f[j] * y[j - 1] (INPUTS
   2).  In reverse, the recurrence is y[j] = x[j] + f[j + 1] * y[j + 1].

   Each step waits for the one before, so several rows, or parts of a few long rows, are computed in one
   loop.  The totals of the parts before a part are computed first.  If later axes follow, a vector has
   neighbouring columns of them.

   The argument block: threads, outer, n, inner, columns of a task, parts of a row and their length,
   then slot and offset of x [outer, n, inner], the factors (INPUTS 2), the result, which may be x, and
   the scratch memory, which holds outer * parts elements of W.

   T         type of an element
   W         type of a running total
   INPUTS    number of inputs
   OPERATOR  operator of a sum or product
   IDENTITY  its identity element
   REVERSE   whether to start at the end */
#if INPUTS == 2
#define NAME_STEP(total, e) (j ? x[e] + (W)f[e] * (total) : x[e])
#else
#define NAME_STEP(total, e) ((total) OPERATOR x[e])
#endif
enum { NAME_ROWS = 4, NAME_LANES = 32, NAME_COLUMNS = 512, NAME_SHORT = 512 };
/* Scan `count` elements of each of NAME_ROWS rows, which are row_stride elements apart. */
MG_SCALAR void NAME_rows(const T *x, const T *f, T *y, int64_t row_stride, int64_t count,
                         const W *totals_before) {
  W total[NAME_ROWS];
  for (int k = 0; k < NAME_ROWS; k++) total[k] = totals_before[k];
  /* Of short rows the processor sees too late that the next ones follow. */
  const int64_t next = (REVERSE ? 2 * NAME_ROWS - 1 : NAME_ROWS) * row_stride;
  for (int64_t j = 0; j < count; j++) {
    const int64_t e = REVERSE ? -j : j;
    if (count <= NAME_SHORT && j * NAME_ROWS * sizeof(T) % 64 == 0) {
      __builtin_prefetch(x + next + NAME_ROWS * e);
      __builtin_prefetch(y + next + NAME_ROWS * e, 1);
    }
    #pragma GCC unroll 4
    for (int k = 0; k < NAME_ROWS; k++) {
      total[k] = NAME_STEP(total[k], k * row_stride + e);
      y[k * row_stride + e] = (T)total[k];
    }
  }
}
MG_SCALAR void NAME_row(const T *x, const T *f, T *y, int64_t count, W total) {
  for (int64_t j = 0; j < count; j++) {
    const int64_t e = REVERSE ? -j : j;
    total = NAME_STEP(total, e);
    y[e] = (T)total;
  }
}
static void NAME_columns(const T *x, const T *f, T *y, int64_t n, int64_t inner, int64_t columns) {
  W total[NAME_COLUMNS];
  for (int64_t k = 0; k < columns; k++) total[k] = IDENTITY;
  for (int64_t j = 0; j < n; j++) {
    const int64_t e = (REVERSE ? n - 1 - j : j) * inner;
    #pragma GCC ivdep
    for (int64_t k = 0; k < columns; k++) {
      total[k] = NAME_STEP(total[k], e + k);
      y[e + k] = (T)total[k];
    }
  }
}
/* Return the total of `count` elements, in any order. */
static W NAME_total(const T *x, int64_t count) {
  W lane[NAME_LANES], total = IDENTITY;
  for (int k = 0; k < NAME_LANES; k++) lane[k] = IDENTITY;
  int64_t j = 0;
  for (; j + NAME_LANES <= count; j += NAME_LANES) {
    #pragma GCC unroll 8
    #pragma GCC ivdep
    for (int k = 0; k < NAME_LANES; k++) lane[k] = lane[k] OPERATOR x[j + k];
  }
  for (; j < count; j++) total = total OPERATOR x[j];
  for (int k = 0; k < NAME_LANES; k++) total = total OPERATOR lane[k];
  return total;
}
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], outer = a[1], n = a[2], inner = a[3], columns = a[4];
  const int64_t parts = a[5], length = a[6];
  const T *x = (const T *)(slots[a[7]] + a[8]);
  /* In reverse, element j has the factor of element j + 1. */
  const T *f = (const T *)(slots[a[9]] + a[10]) + (REVERSE ? inner : 0);
  const int64_t *result = a + 7 + 2 * INPUTS;
  T *y = (T *)(slots[result[0]] + result[1]);
  (void)threads, (void)f;
  if (inner > 1) {
    const int64_t blocks = (inner + columns - 1) / columns;
    #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t task = 0; task < outer * blocks; task++) {
      const int64_t first = task % blocks * columns, offset = task / blocks * n * inner + first;
      const int64_t width = inner - first < columns ? inner - first : columns;
      NAME_columns(x + offset, f + offset, y + offset, n, inner, width);
    }
    return 0;
  }
  /* Part r is of row r / parts; the last part of a row may be shorter. */
  W *totals_before = (W *)(slots[result[2]] + result[3]);
  const int64_t rows = outer * parts;
  #define NAME_COUNT(r) ((r) % parts < parts - 1 ? length : n - (parts - 1) * length)
  #define NAME_START(r) ((r) / parts * n + (REVERSE ? n - 1 - (r) % parts * length \
                                                    : (r) % parts * length))
  #define NAME_POINTERS(r) x + NAME_START(r), f + NAME_START(r), y + NAME_START(r)
  if (parts > 1) {
    #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t r = 0; r < rows; r++)
      totals_before[r] = NAME_total(x + NAME_START(r) - (REVERSE ? NAME_COUNT(r) - 1 : 0), NAME_COUNT(r));
    for (int64_t o = 0; o < outer; o++) {
      W total = IDENTITY;
      for (int64_t r = o * parts; r < (o + 1) * parts; r++) {
        const W part_total = totals_before[r];
        totals_before[r] = total;
        total = total OPERATOR part_total;
      }
    }
  }
  const int64_t groups = (rows + NAME_ROWS - 1) / NAME_ROWS;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t g = 0; g < groups; g++) {
    const int64_t first = g * NAME_ROWS, end = first + NAME_ROWS;
    if (end <= rows && first / parts == (end - 1) / parts && end % parts) {
      NAME_rows(NAME_POINTERS(first), REVERSE ? -length : length, length, totals_before + first);
      continue;
    }
    if (parts == 1 && end <= rows) {
      const W identities[NAME_ROWS] = {IDENTITY, IDENTITY, IDENTITY, IDENTITY};
      NAME_rows(NAME_POINTERS(first), n, n, identities);
      continue;
    }
    for (int64_t r = first; r < (end < rows ? end : rows); r++)
      NAME_row(NAME_POINTERS(r), NAME_COUNT(r), parts > 1 ? totals_before[r] : IDENTITY);
  }
  return 0;
}
#undef NAME_COUNT
#undef NAME_START
#undef NAME_POINTERS
#undef NAME_STEP
