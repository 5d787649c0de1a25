/* The cross entropy of each row of logits and its label, or the gradient (BACKWARD) for the logits.

   The constant cost of a short row is most of its time, so the lanes of a group of rows are folded at
   once, by pairs of neighbours, and their logarithms are computed in vectors.

   The argument block: threads, rows, length of a row, then the operands: the gradient of the result
   (BACKWARD), logits, labels, the result.  Returns 1 for a label out of range, before anything is
   written.  The result may overwrite the logits: a row of x is not read after q has its exponentials.

   T       type of the logits
   L       type of the labels
   EXP(x)  exp or expf */
enum {
  NAME_VECTOR = 64 / sizeof(T),
  NAME_LANES = 4 * NAME_VECTOR,   /* independent accumulators */
  NAME_STRETCH = 16 * NAME_LANES, /* elements that are summed in T */
  NAME_ROWS = 16,                 /* rows of a group, at most */
  NAME_CACHED = 30000 / sizeof(T) /* elements of a group, which fit the first cache */
};
MG_INLINE T NAME_max(T p, T q) { return q > p || q != q ? q : p; } /* NaN is larger than any number */
#define NAME_add(p, q) ((p) + (q))
/* Fold the lanes of a row from four vectors to one. */
#define NAME_FOLD_VECTORS(combine, lane, k) \
  combine(combine(lane[k], lane[NAME_VECTOR + k]), \
          combine(lane[2 * NAME_VECTOR + k], lane[3 * NAME_VECTOR + k]))
/* Fold the vectors of a group of rows to one element for each row. */
#define NAME_FOLD_ROWS(combine, lane, rows) \
  for (int half = NAME_VECTOR / 2; half; half /= 2) { \
    _Pragma("GCC ivdep") \
    for (int64_t k = 0; k < rows * half; k++) lane[k] = combine(lane[2 * k], lane[2 * k + 1]); \
  }
/* Fold a row to a vector of maxima. */
static void NAME_peak(const T *p, int64_t n, T *peak) {
  T lane[NAME_LANES], identity = -INFINITY;
  MG_OPAQUE(identity);
  for (int k = 0; k < NAME_LANES; k++) lane[k] = identity;
  int64_t j = 0;
  for (; j + NAME_LANES <= n; j += NAME_LANES)
    #pragma GCC unroll 4
    for (int k = 0; k < NAME_LANES; k++) lane[k] = NAME_max(lane[k], p[j + k]);
  const int rest = n - j;
  for (int k = 0; rest && k < MG_REMAINDER_LENGTH(sizeof(T), NAME_LANES, rest); k++)
    lane[k] = NAME_max(lane[k], k < rest ? p[j + k] : identity);
  for (int k = 0; k < NAME_VECTOR; k++) peak[k] = NAME_FOLD_VECTORS(NAME_max, lane, k);
}
/* Sum exp(p - peak), and store it to q (BACKWARD); prefetch the row `next`. */
static void NAME_total(const T *p, int64_t n, T peak, T *q, const T *next, double *total) {
  for (int k = 0; k < NAME_VECTOR; k++) total[k] = 0;
  for (int64_t j = 0; j < n;) {
    T lane[NAME_LANES], identity = 0;
    MG_OPAQUE(identity);
    for (int k = 0; k < NAME_LANES; k++) lane[k] = identity;
    const int64_t end = n - j < NAME_STRETCH ? n : j + NAME_STRETCH;
    for (; j + NAME_LANES <= end; j += NAME_LANES) {
      mg_prefetch((const char *)(next + j), sizeof lane);
      #pragma GCC ivdep
      for (int k = 0; k < NAME_LANES; k++) {
        const T e = EXP(p[j + k] - peak);
        if (BACKWARD) q[j + k] = e;
        lane[k] += e;
      }
    }
    const int rest = end - j;
    if (rest) {
      #pragma GCC ivdep
      for (int k = 0; k < MG_REMAINDER_LENGTH(sizeof(T), NAME_LANES, rest); k++) {
        const T e = EXP(k < rest ? p[j + k] - peak : 0);
        if (BACKWARD && k < rest) q[j + k] = e;
        lane[k] += k < rest ? e : 0;
      }
      j = end;
    }
    for (int k = 0; k < NAME_VECTOR; k++) total[k] += NAME_FOLD_VECTORS(NAME_add, lane, k);
  }
}
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], rows = a[1], n = a[2], *operand = a + 3;
#if BACKWARD
  const T *dy = (const T *)(slots[operand[0]] + operand[1]);
  operand += 2;
#endif
  const T *x = (const T *)(slots[operand[0]] + operand[1]);
  const L *label = (const L *)(slots[operand[2]] + operand[3]);
  T *y = (T *)(slots[operand[4]] + operand[5]);
  for (int64_t o = 0; o < rows; o++)
    if ((uint64_t)label[o] >= (uint64_t)n) return 1; /* a negative label is too large, too */
  const int64_t thread_rows = rows / threads + 1, cached_rows = NAME_CACHED / n + 1;
  const int64_t group_limit = thread_rows < cached_rows ? thread_rows : cached_rows;
  const int64_t group = group_limit < NAME_ROWS ? group_limit : NAME_ROWS;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t first = 0; first < rows; first += group) {
    const int64_t group_rows = rows - first < group ? rows - first : group;
    T peak[NAME_ROWS * NAME_VECTOR];
    double total[NAME_ROWS * NAME_VECTOR];
    for (int64_t r = 0; r < group_rows; r++)
      NAME_peak(x + (first + r) * n, n, peak + r * NAME_VECTOR);
    NAME_FOLD_ROWS(NAME_max, peak, group_rows)
    for (int64_t r = 0; r < group_rows; r++) {
      const T *p = x + (first + r) * n;
      T *q = BACKWARD ? y + (first + r) * n : NULL;
      NAME_total(p, n, peak[r], q, p + group_rows * n, total + r * NAME_VECTOR);
    }
    NAME_FOLD_ROWS(NAME_add, total, group_rows)
#if BACKWARD
    for (int64_t o = first; o < first + group_rows; o++) {
      T *q = y + o * n;
      const T upstream = dy[o], scale = 1 / total[o - first];
      const T label_gradient = -upstream + q[label[o]] * scale * upstream;
      for (int64_t j = 0; j < n; j++) q[j] = 0 + q[j] * scale * upstream; /* 0 + avoids -0 */
      q[label[o]] = label_gradient;
    }
#else
    for (int64_t r = 0; r < group_rows; r++) total[r] = log(total[r]);
    for (int64_t r = 0; r < group_rows; r++) {
      const int64_t o = first + r;
      y[o] = -((x[o * n + label[o]] - peak[r]) - (T)total[r]);
    }
#endif
  }
  return 0;
}
#undef NAME_add
#undef NAME_FOLD_VECTORS
#undef NAME_FOLD_ROWS
