/* The sums, or products, of each element and all before it along an axis, or y = x + factor times the y
   before it (OF 2): from the end on, with the factor of that.

   Rows, or parts of a few long ones, are joined one element after the other, several side by side,
   because each join waits for the one before.  What comes before a part is found first.  Where
   later axes follow, all of theirs are joined in vectors.

   The argument block: threads, outer, n, inner, columns that are joined side by side, parts of a
   row and their length, then slot and offset of x [outer, n, inner], the factors (OF 2), the result,
   which may be x, and the scratch memory, which holds outer * parts of W.

   T         type of an element
   W         type in which they are joined
   OF        how many inputs are joined
   OPERATOR  that joins those of one
   NONE      what changes nothing it is joined with
   REVERSE   whether an element is joined with all behind it instead */
#if OF == 2
#define NAME_WITH(total, e) (j ? x[e] + (W)f[e] * (total) : x[e])
#else
#define NAME_WITH(total, e) ((total) OPERATOR x[e])
#endif
enum { NAME_ROWS = 4, NAME_LANES = 32, NAME_COLUMNS = 512 };
/* Join `count` elements of each of several rows, that lie so far apart. */
MG_SCALAR void NAME_rows(const T *x, const T *f, T *y, int64_t apart, int64_t count, const W *before) {
  W total[NAME_ROWS];
  for (int k = 0; k < NAME_ROWS; k++) total[k] = before[k];
  for (int64_t j = 0; j < count; j++) {
    const int64_t e = REVERSE ? -j : j;
    #pragma GCC unroll 4
    for (int k = 0; k < NAME_ROWS; k++) {
      total[k] = NAME_WITH(total[k], k * apart + e);
      y[k * apart + e] = (T)total[k];
    }
  }
}
MG_SCALAR void NAME_row(const T *x, const T *f, T *y, int64_t count, W total) {
  for (int64_t j = 0; j < count; j++) {
    const int64_t e = REVERSE ? -j : j;
    total = NAME_WITH(total, e);
    y[e] = (T)total;
  }
}
static void NAME_columns(const T *x, const T *f, T *y, int64_t n, int64_t inner, int64_t columns) {
  W total[NAME_COLUMNS];
  for (int64_t k = 0; k < columns; k++) total[k] = NONE;
  for (int64_t j = 0; j < n; j++) {
    const int64_t e = (REVERSE ? n - 1 - j : j) * inner;
    #pragma GCC ivdep
    for (int64_t k = 0; k < columns; k++) {
      total[k] = NAME_WITH(total[k], e + k);
      y[e + k] = (T)total[k];
    }
  }
}
/* What elements make that may be joined in any order. */
static W NAME_all(const T *x, int64_t count) {
  W lane[NAME_LANES], total = NONE;
  for (int k = 0; k < NAME_LANES; k++) lane[k] = NONE;
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
  /* Backwards, the factor that follows x is that of the y before it. */
  const T *f = (const T *)(slots[a[9]] + a[10]) + (REVERSE ? inner : 0);
  const int64_t *result = a + 7 + 2 * OF;
  T *y = (T *)(slots[result[0]] + result[1]);
  (void)threads, (void)f;
  if (inner > 1) {
    const int64_t blocks = (inner + columns - 1) / columns;
    #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t w = 0; w < outer * blocks; w++) {
      const int64_t first = w % blocks * columns, at = w / blocks * n * inner + first;
      const int64_t wide = inner - first < columns ? inner - first : columns;
      NAME_columns(x + at, f + at, y + at, n, inner, wide);
    }
    return 0;
  }
  /* Row o begins at o * n, where its last element lies at o * n + n - 1; the last of its parts may
     be shorter than the others. */
  W *before = (W *)(slots[result[2]] + result[3]);
  const int64_t rows = outer * parts;
  #define NAME_COUNT(r) ((r) % parts < parts - 1 ? length : n - (parts - 1) * length)
  #define NAME_BEGIN(r) ((r) / parts * n + (REVERSE ? n - 1 - (r) % parts * length \
                                                    : (r) % parts * length))
  #define NAME_FROM(r) x + NAME_BEGIN(r), f + NAME_BEGIN(r), y + NAME_BEGIN(r)
  if (parts > 1) {
    #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t r = 0; r < rows; r++)
      before[r] = NAME_all(x + NAME_BEGIN(r) - (REVERSE ? NAME_COUNT(r) - 1 : 0), NAME_COUNT(r));
    for (int64_t o = 0; o < outer; o++) {
      W total = NONE;
      for (int64_t r = o * parts; r < (o + 1) * parts; r++) {
        const W mine = before[r];
        before[r] = total;
        total = total OPERATOR mine;
      }
    }
  }
  const int64_t groups = (rows + NAME_ROWS - 1) / NAME_ROWS;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t g = 0; g < groups; g++) {
    const int64_t first = g * NAME_ROWS, end = first + NAME_ROWS;
    if (end <= rows && first / parts == (end - 1) / parts && end % parts) {
      NAME_rows(NAME_FROM(first), REVERSE ? -length : length, length, before + first);
      continue;
    }
    if (parts == 1 && end <= rows) {
      const W none[NAME_ROWS] = {NONE, NONE, NONE, NONE};
      NAME_rows(NAME_FROM(first), n, n, none);
      continue;
    }
    for (int64_t r = first; r < (end < rows ? end : rows); r++)
      NAME_row(NAME_FROM(r), NAME_COUNT(r), parts > 1 ? before[r] : NONE);
  }
  return 0;
}
#undef NAME_COUNT
#undef NAME_BEGIN
#undef NAME_FROM
#undef NAME_WITH
