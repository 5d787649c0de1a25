/* The index of the first largest element along an axis; NaN counts as largest.

   The argument block: threads, elements before the axis, along it and after it, then the operands.

   T  type of an element
   V  what it is compared as: of a bool _Bool, because any byte but 0 is true */
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], outer = a[1], n = a[2], inner = a[3];
  const T *x = (const T *)(slots[a[4]] + a[5]);
  int64_t *y = (int64_t *)(slots[a[6]] + a[7]);
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t u = 0; u < outer * inner; u++) {
    const T *p = x + u / inner * n * inner + u % inner;
    int64_t at = 0;
    for (int64_t j = 1; j < n; j++) {
      const V v = (V)p[j * inner], best = (V)p[at * inner];
      if (v > best || (v != v && best == best)) at = j;
    }
    y[u] = at;
  }
  return 0;
}
