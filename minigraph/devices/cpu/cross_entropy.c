/* The cross entropy of each row of logits with its label, or the gradient (BACKWARD) for the logits.

   What a short row costs besides its elements is most of its time, so the lanes of some rows are
   joined at once, in pairs, and their logarithms are computed in vectors.

   The argument block: threads, rows, the length of a row, then the operands: BACKWARD the gradient
   first; logits, labels, the result.  Labels out of range are refused (1) before anything is
   written.  The result may overwrite the logits: of a row of x nothing is read any more once q holds
   the exponentials.

   T     type of the logits
   L     type of the labels
   EXP   the exponential for T */
enum {
  NAME_VECTOR = 64 / sizeof(T),
  NAME_LANES = 4 * NAME_VECTOR, /* elements that are joined side by side */
  NAME_PART = 16 * NAME_LANES,  /* elements that are added up in T */
  NAME_ROWS = 16,               /* rows that are joined at once, at most */
  NAME_NEAR = 30000 / sizeof(T) /* elements of them, which the nearest cache keeps */
};
MG_INLINE T NAME_higher(T p, T q) { return q > p || q != q ? q : p; } /* NaN is the highest */
#define NAME_sum(p, q) ((p) + (q))
/* Join the lanes, from four vectors to one. */
#define NAME_FOUR(join, lane, k) \
  join(join(lane[k], lane[NAME_VECTOR + k]), \
       join(lane[2 * NAME_VECTOR + k], lane[3 * NAME_VECTOR + k]))
/* Join the vectors of rows, until each row has one element. */
#define NAME_JOIN(join, lane, rows) \
  for (int half = NAME_VECTOR / 2; half; half /= 2) { \
    _Pragma("GCC ivdep") \
    for (int64_t k = 0; k < rows * half; k++) lane[k] = join(lane[2 * k], lane[2 * k + 1]); \
  }
static void NAME_peak(const T *p, int64_t n, T *peak) {
  T lane[NAME_LANES], none = -INFINITY;
  MG_OPAQUE(none);
  for (int k = 0; k < NAME_LANES; k++) lane[k] = none;
  int64_t j = 0;
  for (; j + NAME_LANES <= n; j += NAME_LANES)
    #pragma GCC unroll 4
    for (int k = 0; k < NAME_LANES; k++) lane[k] = NAME_higher(lane[k], p[j + k]);
  const int rest = n - j;
  for (int k = 0; rest && k < MG_REMAINDER_LENGTH(sizeof(T), NAME_LANES, rest); k++)
    lane[k] = NAME_higher(lane[k], k < rest ? p[j + k] : none);
  for (int k = 0; k < NAME_VECTOR; k++) peak[k] = NAME_FOUR(NAME_higher, lane, k);
}
/* The sum of exp(p - peak), which q keeps; meanwhile memory brings the row `next`. */
static void NAME_total(const T *p, int64_t n, T peak, T *q, const T *next, double *total) {
  for (int k = 0; k < NAME_VECTOR; k++) total[k] = 0;
  for (int64_t j = 0; j < n;) {
    T lane[NAME_LANES], none = 0;
    MG_OPAQUE(none);
    for (int k = 0; k < NAME_LANES; k++) lane[k] = none;
    const int64_t end = n - j < NAME_PART ? n : j + NAME_PART;
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
    for (int k = 0; k < NAME_VECTOR; k++) total[k] += NAME_FOUR(NAME_sum, lane, k);
  }
}
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], rows = a[1], n = a[2], *place = a + 3;
#if BACKWARD
  const T *dy = (const T *)(slots[place[0]] + place[1]);
  place += 2;
#endif
  const T *x = (const T *)(slots[place[0]] + place[1]);
  const L *label = (const L *)(slots[place[2]] + place[3]);
  T *y = (T *)(slots[place[4]] + place[5]);
  for (int64_t o = 0; o < rows; o++)
    if ((uint64_t)label[o] >= (uint64_t)n) return 1; /* a negative one is a large one */
  const int64_t share = rows / threads + 1, near = NAME_NEAR / n + 1;
  const int64_t few = share < near ? share : near, most = few < NAME_ROWS ? few : NAME_ROWS;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t some = rows - first < most ? rows - first : most;
    T peak[NAME_ROWS * NAME_VECTOR];
    double total[NAME_ROWS * NAME_VECTOR];
    for (int64_t r = 0; r < some; r++)
      NAME_peak(x + (first + r) * n, n, peak + r * NAME_VECTOR);
    NAME_JOIN(NAME_higher, peak, some)
    for (int64_t r = 0; r < some; r++) {
      const T *p = x + (first + r) * n;
      T *q = BACKWARD ? y + (first + r) * n : NULL;
      NAME_total(p, n, peak[r], q, p + some * n, total + r * NAME_VECTOR);
    }
    NAME_JOIN(NAME_sum, total, some)
#if BACKWARD
    for (int64_t o = first; o < first + some; o++) {
      T *q = y + o * n;
      const T d = dy[o], scale = 1 / total[o - first];
      const T chosen = -d + q[label[o]] * scale * d;
      for (int64_t j = 0; j < n; j++) q[j] = 0 + q[j] * scale * d; /* 0 +: no -0 */
      q[label[o]] = chosen;
    }
#else
    for (int64_t r = 0; r < some; r++) total[r] = log(total[r]);
    for (int64_t r = 0; r < some; r++) {
      const int64_t o = first + r;
      y[o] = -((x[o * n + label[o]] - peak[r]) - (T)total[r]);
    }
#endif
  }
  return 0;
}
#undef NAME_sum
#undef NAME_FOUR
#undef NAME_JOIN
