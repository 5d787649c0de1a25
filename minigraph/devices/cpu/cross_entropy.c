/* The cross entropy of each row of logits with its label, or the gradient (BACKWARD) for the logits.

   The argument block: threads, rows, the length of a row, then the operands: BACKWARD the gradient
   first; logits, labels, the result.  Labels out of range are refused (1) before anything is
   written.  The result may overwrite the logits: of a row of x nothing is read any more once q holds
   the exponentials.

   T     type of the logits
   L     type of the labels
   EXP   the exponential for T */
static T NAME_peak(const T *p, int64_t n) { /* the largest element, NaN if there is one */
  T lane[32], peak;
  for (int k = 0; k < 32; k++) lane[k] = -INFINITY;
  int64_t j = 0;
  for (; j + 32 <= n; j += 32)
    for (int k = 0; k < 32; k++)
      lane[k] = p[j + k] > lane[k] || p[j + k] != p[j + k] ? p[j + k] : lane[k];
  for (; j < n; j++) lane[0] = p[j] > lane[0] || p[j] != p[j] ? p[j] : lane[0];
  peak = lane[0];
  for (int k = 1; k < 32; k++) peak = lane[k] > peak || lane[k] != lane[k] ? lane[k] : peak;
  return peak;
}
static double NAME_sum(const T *p, int64_t n, T peak, T *q) { /* of exp(p - peak), which q keeps */
  double total = 0;
  for (int64_t j = 0; j < n; j += 512) {
    const int64_t m = n - j < 512 ? n - j : 512;
    T e[512], part = 0;
    for (int64_t k = 0; k < m; k++) e[k] = EXP(p[j + k] - peak);
    #pragma omp simd reduction(+ : part)
    for (int64_t k = 0; k < m; k++) part += e[k];
    if (q) memcpy(q + j, e, m * sizeof *e);
    total += part;
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
    const T d = dy[o], scale = 1 / NAME_sum(p, n, peak, q);
    const T chosen = -d + q[label[o]] * scale * d;
    for (int64_t j = 0; j < n; j++) q[j] = 0 + q[j] * scale * d; /* 0 +: no -0 */
    q[label[o]] = chosen;
#else
    const T shift = log(NAME_sum(p, n, peak, NULL));
    y[o] = -((p[label[o]] - peak) - shift);
#endif
  }
  return 0;
}
