/* Binary search: y [rows, m] = insertion index of each element of v [rows, m] in its sorted row of
   x [rows, n].  NaN is larger than any number.

   The argument block: threads, rows, n, m, then the operands: x, v, the result.

   T      type of an element
   RIGHT  whether to insert after equal elements, rather than before them */
static inline int NAME_less(T p, T q) { return p < q || (q != q && p == p); }
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], rows = a[1], n = a[2], m = a[3];
  const T *x = (const T *)(slots[a[4]] + a[5]);
  const T *v = (const T *)(slots[a[6]] + a[7]);
  int64_t *y = (int64_t *)(slots[a[8]] + a[9]);
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t e = 0; e < rows * m; e++) {
    const T *row = x + e / m * n, wanted = v[e];
    int64_t first = 0;
    for (int64_t length = n; length > 0;) {
      const int64_t half = length / 2;
      const T middle = row[first + half];
      const int after = RIGHT ? !NAME_less(wanted, middle) : NAME_less(middle, wanted);
      first = after ? first + half + 1 : first;
      length = after ? length - half - 1 : half;
    }
    y[e] = first;
  }
  return 0;
}
