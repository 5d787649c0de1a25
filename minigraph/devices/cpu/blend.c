/* Linear interpolation along an axis: y [outer, count, columns] = (1 - weight) * x[low] + weight *
   x[high] for x [outer, n, columns]; or (BACKWARD) the gradient for x from dy.  Returns 1 for an index
   out of range, before anything is written.

   The argument block: threads, outer, n, columns, count, columns of a thread (BACKWARD), then the
   operands: x or dy, low, high, weight, the result; then the scratch memory (IN_SCRATCH).

   One thread adds up each element of a gradient, in the order of the indices, so the bits are the same
   for any number of threads.

   T           type of an element
   W           type of the sums of a gradient
   IN_SCRATCH  whether the sums are in each thread's scratch memory [n, columns of a thread], not in
               place */
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], outer = a[1], n = a[2], columns = a[3], count = a[4];
  const T *x = (const T *)(slots[a[6]] + a[7]);
  const int32_t *low = (const int32_t *)(slots[a[8]] + a[9]);
  const int32_t *high = (const int32_t *)(slots[a[10]] + a[11]);
  const T *weight = (const T *)(slots[a[12]] + a[13]);
  T *y = (T *)(slots[a[14]] + a[15]);
  (void)threads;
  for (int64_t i = 0; i < count; i++)
    if ((uint64_t)low[i] >= (uint64_t)n || (uint64_t)high[i] >= (uint64_t)n) return 1;
#if BACKWARD
  const int64_t block = a[5], blocks = (columns + block - 1) / block;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t task = 0; task < outer * blocks; task++) {
    const int64_t o = task / blocks, first = task % blocks * block;
    const int64_t width = columns - first < block ? columns - first : block;
    T *const result = y + o * n * columns + first;
#if IN_SCRATCH
    W *const q = (W *)(slots[a[16]] + a[17]) + omp_get_thread_num() * n * block;
    const int64_t pitch = width;
#else
    W *const q = result;
    const int64_t pitch = columns;
#endif
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < width; j++) q[i * pitch + j] = 0;
    for (int64_t i = 0; i < count; i++) {
      const T *p = x + (o * count + i) * columns + first;
      const T weight_high = weight[i], weight_low = 1 - weight_high;
      W *at_low = q + low[i] * pitch, *at_high = q + high[i] * pitch;
      for (int64_t j = 0; j < width; j++) {
        at_low[j] += weight_low * p[j];
        at_high[j] += weight_high * p[j];
      }
    }
    for (int64_t i = 0; i < n && IN_SCRATCH; i++)
      for (int64_t j = 0; j < width; j++) result[i * columns + j] = q[i * pitch + j];
  }
#else
  if (columns == 1) {
    #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t o = 0; o < outer; o++) {
      const T *p = x + o * n;
      T *q = y + o * count;
      #pragma omp simd
      for (int64_t i = 0; i < count; i++)
        q[i] = p[low[i]] * (1 - weight[i]) + p[high[i]] * weight[i];
    }
    return 0;
  }
  #pragma omp parallel for collapse(2) num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t o = 0; o < outer; o++)
    for (int64_t i = 0; i < count; i++) {
      const T *at_low = x + (o * n + low[i]) * columns, *at_high = x + (o * n + high[i]) * columns;
      const T weight_high = weight[i], weight_low = 1 - weight_high;
      T *q = y + (o * count + i) * columns;
      #pragma omp simd
      for (int64_t j = 0; j < columns; j++) q[j] = at_low[j] * weight_low + at_high[j] * weight_high;
    }
#endif
  return 0;
}
