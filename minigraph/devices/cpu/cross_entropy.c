/* The cross entropy of each row of logits with its label, or the gradient (BACKWARD) for the logits.

   The argument block: threads, rows, the length of a row, then the operands: BACKWARD the gradient
   first; logits, labels, the result.  Labels out of range are refused (1) before anything is
   written.  The result may overwrite the logits: of a row of x nothing is read any more once q holds
   the exponentials.

   T     type of the logits
   L     type of the labels
   EXP   the exponential for T */
enum { NAME_LANES = 32, NAME_PART = 512 };
MG_INLINE T NAME_higher(T p, T q) { return q > p || q != q ? q : p; } /* NaN is the highest */
MG_INLINE T NAME_sum(T p, T q) { return p + q; }
/* Join the second half of the lanes with the first one, until there is one: by numbers that compilers
   know, each step is a vector. */
#define NAME_STEP(join, half) \
  for (int k = 0; k < half; k++) lane[k] = join(lane[k], lane[k + half]);
#define NAME_JOIN(join) \
  NAME_STEP(join, 16) NAME_STEP(join, 8) NAME_STEP(join, 4) NAME_STEP(join, 2) NAME_STEP(join, 1)
static T NAME_peak(const T *p, int64_t n) {
  T lane[NAME_LANES];
  for (int k = 0; k < NAME_LANES; k++) lane[k] = -INFINITY;
  int64_t j = 0;
  for (; j + NAME_LANES <= n; j += NAME_LANES)
    for (int k = 0; k < NAME_LANES; k++) lane[k] = NAME_higher(lane[k], p[j + k]);
  if (j < n && n > NAME_LANES) /* the last lanes, of which some were compared */
    for (int k = 0; k < NAME_LANES; k++) lane[k] = NAME_higher(lane[k], p[n - NAME_LANES + k]);
  else
    for (int k = 0; j < n; j++, k++) lane[k] = NAME_higher(lane[k], p[j]);
  NAME_JOIN(NAME_higher)
  return lane[0];
}
/* The sum of exp(p - peak), which q keeps. */
static double NAME_total(const T *p, int64_t n, T peak, T *q) {
  double total = 0;
  for (int64_t j = 0; j < n; j += NAME_PART) {
    const int64_t m = n - j < NAME_PART ? n - j : NAME_PART;
    T e[NAME_PART], lane[NAME_LANES] = {0};
    const int64_t whole = m / NAME_LANES * NAME_LANES;
    for (int64_t k = 0; k < whole; k++) e[k] = EXP(p[j + k] - peak);
    if (whole < m) {
      for (int k = 0; k < NAME_LANES; k++) e[whole + k] = -INFINITY; /* whose exponential is 0 */
      for (int64_t k = whole; k < m; k++) e[k] = p[j + k] - peak;
      for (int k = 0; k < NAME_LANES; k++) e[whole + k] = EXP(e[whole + k]);
    }
    if (q) memcpy(q + j, e, m * sizeof *e);
    for (int64_t k = 0; k < m; k += NAME_LANES)
      for (int i = 0; i < NAME_LANES; i++) lane[i] += e[k + i];
    NAME_JOIN(NAME_sum)
    total += lane[0];
  }
  return total;
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
  (void)threads;
  for (int64_t o = 0; o < rows; o++)
    if ((uint64_t)label[o] >= (uint64_t)n) return 1; /* a negative one is a large one */
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t o = 0; o < rows; o++) {
    const T *p = x + o * n;
    const T peak = NAME_peak(p, n);
#if BACKWARD
    T *q = y + o * n;
    const T d = dy[o], scale = 1 / NAME_total(p, n, peak, q);
    const T chosen = -d + q[label[o]] * scale * d;
    for (int64_t j = 0; j < n; j++) q[j] = 0 + q[j] * scale * d; /* 0 +: no -0 */
    q[label[o]] = chosen;
#else
    const T shift = log(NAME_total(p, n, peak, NULL));
    y[o] = -((p[label[o]] - peak) - shift);
#endif
  }
  return 0;
}
