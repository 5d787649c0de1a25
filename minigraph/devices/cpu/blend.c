/* y [outer, count, columns] = of x [outer, n, columns] the elements at `low` times 1 - share plus
   those at `high` times share; or (BACKWARD) the gradient, of x's shape, from dy.  Places out of
   range are refused (1) before anything is written.

   The argument block: threads, outer, n, columns, count, columns that one thread adds (BACKWARD),
   then the operands: x or dy, low, high, share, the result; then the scratch memory (APART).

   Each element of a gradient is added up by one thread in the order of the places: the bits are the
   same for any number of threads.

   T  type of an element
   W  type in which a gradient is added up: APART, in each thread's scratch memory [n, columns that it
      adds], or T and in place */
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], outer = a[1], n = a[2], columns = a[3], count = a[4];
  const T *x = (const T *)(slots[a[6]] + a[7]);
  const int32_t *low = (const int32_t *)(slots[a[8]] + a[9]);
  const int32_t *high = (const int32_t *)(slots[a[10]] + a[11]);
  const T *share = (const T *)(slots[a[12]] + a[13]);
  T *y = (T *)(slots[a[14]] + a[15]);
  (void)threads;
  for (int64_t i = 0; i < count; i++)
    if ((uint64_t)low[i] >= (uint64_t)n || (uint64_t)high[i] >= (uint64_t)n) return 1;
#if BACKWARD
  const int64_t block = a[5], blocks = (columns + block - 1) / block;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t w = 0; w < outer * blocks; w++) {
    const int64_t o = w / blocks, first = w % blocks * block;
    const int64_t wide = columns - first < block ? columns - first : block;
    T *const result = y + o * n * columns + first;
#if APART
    W *const q = (W *)(slots[a[16]] + a[17]) + omp_get_thread_num() * n * block;
    const int64_t pitch = wide;
#else
    W *const q = result;
    const int64_t pitch = columns;
#endif
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < wide; j++) q[i * pitch + j] = 0;
    for (int64_t i = 0; i < count; i++) {
      const T *p = x + (o * count + i) * columns + first;
      const T far = share[i], near = 1 - far;
      W *below = q + low[i] * pitch, *above = q + high[i] * pitch;
      for (int64_t j = 0; j < wide; j++) {
        below[j] += near * p[j];
        above[j] += far * p[j];
      }
    }
    for (int64_t i = 0; i < n && APART; i++)
      for (int64_t j = 0; j < wide; j++) result[i * columns + j] = q[i * pitch + j];
  }
#else
  if (columns == 1) {
    #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t o = 0; o < outer; o++) {
      const T *p = x + o * n;
      T *q = y + o * count;
      #pragma omp simd
      for (int64_t i = 0; i < count; i++)
        q[i] = p[low[i]] * (1 - share[i]) + p[high[i]] * share[i];
    }
    return 0;
  }
  #pragma omp parallel for collapse(2) num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t o = 0; o < outer; o++)
    for (int64_t i = 0; i < count; i++) {
      const T *below = x + (o * n + low[i]) * columns, *above = x + (o * n + high[i]) * columns;
      const T far = share[i], near = 1 - far;
      T *q = y + (o * count + i) * columns;
      #pragma omp simd
      for (int64_t j = 0; j < columns; j++) q[j] = below[j] * near + above[j] * far;
    }
#endif
  return 0;
}
