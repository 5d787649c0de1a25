/* Elements chosen by indices that each row along an axis has of its own.  Negative indices count
   from the end; those out of range are refused (1) before anything is written.

   MODE 0  y [outer, count, columns] = x [outer, n, columns] at the indices [outer, count, columns]
   MODE 1  y [outer, n, columns]: zeros with x [outer, count, columns] added at the indices
   MODE 2  y [outer, n, columns] = x with v [outer, count, columns] put at the indices in turn

   The argument block: threads, outer, n, columns, count, columns that one thread writes to, then the
   operands: x, the indices, v (MODE 2), the result, which may be x in MODE 2; then the scratch memory
   (APART).

   Each element is written by one thread in the order of the indices: the bits are the same for any
   number of threads.

   T  type of an element of the result
   L  type of an index
   W  type in which MODE 1 adds up APART: in each thread's scratch memory [n, columns that it writes
      to]; else it adds in place */
static inline int64_t NAME_at(L index, int64_t n) {
  return index < 0 ? (int64_t)index + n : (int64_t)index;
}
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], outer = a[1], n = a[2], columns = a[3], count = a[4];
  const int64_t *operand = a + 6;
  (void)threads;
  const T *x = (const T *)(slots[operand[0]] + operand[1]);
  operand += 2;
  const L *index = (const L *)(slots[operand[0]] + operand[1]);
  operand += 2;
#if MODE == 2
  const T *v = (const T *)(slots[operand[0]] + operand[1]);
  operand += 2;
#endif
  T *y = (T *)(slots[operand[0]] + operand[1]);
  int64_t outside = 0;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) \
    reduction(+ : outside)
  for (int64_t e = 0; e < outer * count * columns; e++)
    outside += (uint64_t)NAME_at(index[e], n) >= (uint64_t)n;
  if (outside) return 1;
#if MODE == 0
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t t = 0; t < threads; t++) {
    const int64_t rows = outer * count, begin = t * rows / threads;
    const T *from = x + begin / count * n * columns;
    int64_t i = begin % count;
    for (int64_t row = begin; row < (t + 1) * rows / threads; row++) {
      for (int64_t j = 0; j < columns; j++) {
        const int64_t e = row * columns + j;
        y[e] = from[NAME_at(index[e], n) * columns + j];
      }
      if (++i == count) i = 0, from += n * columns;
    }
  }
#else
  const int64_t block = a[5], blocks = (columns + block - 1) / block;
  #pragma omp parallel num_threads(threads) if (threads > 1)
  {
    #pragma omp for schedule(static)
    for (int64_t e = 0; e < outer * n * columns; e++) {
      y[e] = MODE == 2 ? x[e] : 0;
    }
    #pragma omp for schedule(static)
    for (int64_t w = 0; w < outer * blocks; w++) {
      const int64_t o = w / blocks, first = w % blocks * block;
      const int64_t end = columns - first < block ? columns : first + block;
#if APART
      const int64_t wide = end - first;
      W *const sum = (W *)(slots[operand[2]] + operand[3]) + omp_get_thread_num() * n * block;
      for (int64_t e = 0; e < n * wide; e++) sum[e] = 0;
#endif
      for (int64_t i = 0; i < count; i++) {
        const int64_t begin = (o * count + i) * columns;
        for (int64_t j = first; j < end; j++) {
          const int64_t at = NAME_at(index[begin + j], n);
#if APART
          W *q = sum + at * wide + j - first;
#else
          T *q = y + (o * n + at) * columns + j;
#endif
#if MODE == 1
          *q += x[begin + j];
#else
          *q = v[begin + j];
#endif
        }
      }
#if APART
      for (int64_t k = 0; k < n; k++)
        for (int64_t j = 0; j < wide; j++) y[(o * n + k) * columns + first + j] = sum[k * wide + j];
#endif
    }
  }
#endif
  return 0;
}
