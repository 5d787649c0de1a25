/* Binary search: y [rows, m] = insertion index of each element of v [rows, m] in its sorted row of
   x [rows, n].  NaN is larger than any number.

   Elements of a row are searched together, in vectors: the part of the row that is left has a length
   that does not depend on the element.

   The argument block: threads, rows, n, m, then the operands: x, v, the result.

   T      type of an element
   RIGHT  whether to insert after equal elements, rather than before them */
enum { NAME_GROUP = 32 };
static inline int NAME_less(T p, T q) { return (p < q) | ((q != q) & (p == p)); }
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], rows = a[1], n = a[2], m = a[3], groups = (m + NAME_GROUP - 1) / NAME_GROUP;
  const T *x = (const T *)(slots[a[4]] + a[5]);
  const T *v = (const T *)(slots[a[6]] + a[7]);
  int64_t *y = (int64_t *)(slots[a[8]] + a[9]);
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t task = 0; task < rows * groups; task++) {
    const int64_t begin = task % groups * NAME_GROUP, at = task / groups * m + begin;
    const int64_t count = m - begin < NAME_GROUP ? m - begin : NAME_GROUP;
    const T *row = x + task / groups * n;
    int64_t first[NAME_GROUP] = {0};
    for (int64_t length = n; length > 0; length /= 2) {
      const int64_t half = (length + 1) / 2;
      #pragma omp simd
      for (int64_t j = 0; j < count; j++) {
        const T middle = row[first[j] + half - 1], wanted = v[at + j];
        first[j] += (RIGHT ? !NAME_less(wanted, middle) : NAME_less(middle, wanted)) ? half : 0;
      }
    }
    memcpy(y + at, first, count * sizeof *y);
  }
  return 0;
}
