/* y [outer, count, columns] = x [outer, n, columns] at `count` indices; or (BACKWARD) zeros like x
   with dy added there.  Negative indices count from the end (WRAPS); those out of range are refused (1)
   before anything is written.  Of single elements (columns 1), runs of consecutive indices are copied
   whole where they are long, as in a padding by reflection.

   The argument block: threads, outer, n, columns, count, then columns that one thread adds (BACKWARD),
   how many runs pay (columns 1), or whether to stream past the caches; then the operands: x or dy, the
   indices, the result; then the scratch memory.

   Each element of a gradient is added up by one thread in the order of the indices: the bits are
   the same for any number of threads.  What belongs to an index that occurs more than FEW times
   is added up in W.

   T      type of an element
   L      type of an index
   W      type in which many are added up
   PAIRS  whether what their sums round off is added up, too
   FEW    how many are added up in T */
enum { NAME_COLUMNS = 256 };
static inline int64_t NAME_at(const L *index, int64_t i, int64_t n) {
  return WRAPS && index[i] < 0 ? (int64_t)index[i] + n : (int64_t)index[i];
}
#if PAIRS
#define NAME_ADD(total, rest, x) mg_compensated_add(&total, &rest, x)
#define NAME_SUM(total, rest) mg_compensated_sum(total, rest)
#else
#define NAME_ADD(total, rest, x) total += x
#define NAME_SUM(total, rest) total
#endif
#if BACKWARD
/* Sort the places by their indices; whether an index occurs more than FEW times. */
static int NAME_sort(const L *index, int64_t n, int64_t count, int64_t *behind, int64_t *order) {
  int64_t before = 0, most = 0;
  memset(behind, 0, n * sizeof *behind);
  for (int64_t i = 0; i < count; i++) behind[NAME_at(index, i, n)]++;
  for (int64_t k = 0; k < n; k++) {
    const int64_t here = behind[k];
    if (here > most) most = here;
    behind[k] = before;
    before += here;
  }
  for (int64_t i = 0; i < count && most > FEW; i++) order[behind[NAME_at(index, i, n)]++] = i;
  return most > FEW;
}
#endif
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], outer = a[1], n = a[2], columns = a[3], count = a[4];
  const T *x = (const T *)(slots[a[6]] + a[7]);
  const L *index = (const L *)(slots[a[8]] + a[9]);
  T *y = (T *)(slots[a[10]] + a[11]);
  (void)threads;
  L least = 0, most = 0;
  for (int64_t i = 0; i < count; i++) {
    least = index[i] < least ? index[i] : least;
    most = index[i] > most ? index[i] : most;
  }
  if ((least < 0 && (!WRAPS || (int64_t)least < -n)) || (uint64_t)most >= (uint64_t)n) return 1;
#if BACKWARD
  const int64_t block = a[5], blocks = (columns + block - 1) / block;
  /* behind[k]: where the places with the indices up to k end in `order`, if some index is often. */
  int64_t *behind = count > FEW ? (int64_t *)(slots[a[12]] + a[13]) : NULL, *order = behind + n;
  if (behind && !NAME_sort(index, n, count, behind, order)) behind = NULL;
  #define NAME_OFTEN(k) (behind && behind[k] - (k ? behind[k - 1] : 0) > FEW)
  #pragma omp parallel num_threads(threads) if (threads > 1)
  {
    #pragma omp for schedule(static)
    for (int64_t e = 0; e < outer * n * columns; e++) y[e] = 0;
    #pragma omp for schedule(static)
    for (int64_t w = 0; w < outer * blocks; w++) {
      const int64_t o = w / blocks, first = w % blocks * block;
      const int64_t wide = columns - first < block ? columns - first : block;
      if (columns == 1 && !behind) {
        for (int64_t i = 0; i < count; i++) y[o * n + NAME_at(index, i, n)] += x[o * count + i];
        continue;
      }
      for (int64_t i = 0; i < count; i++) {
        const int64_t k = NAME_at(index, i, n);
        if (NAME_OFTEN(k)) continue;
        const T *p = x + (o * count + i) * columns + first;
        T *q = y + (o * n + k) * columns + first;
        #pragma omp simd
        for (int64_t j = 0; j < wide; j++) q[j] += p[j];
      }
      for (int64_t k = 0; behind && k < n; k++)
        for (int64_t at = 0; NAME_OFTEN(k) && at < wide; at += NAME_COLUMNS) {
          const int64_t some = wide - at < NAME_COLUMNS ? wide - at : NAME_COLUMNS;
          W total[NAME_COLUMNS] = {0}, rest[NAME_COLUMNS] = {0};
          for (int64_t i = k ? behind[k - 1] : 0; i < behind[k]; i++) {
            const T *p = x + (o * count + order[i]) * columns + first + at;
            #pragma omp simd
            for (int64_t j = 0; j < some; j++) NAME_ADD(total[j], rest[j], p[j]);
          }
          T *q = y + (o * n + k) * columns + first + at;
          for (int64_t j = 0; j < some; j++) q[j] = NAME_SUM(total[j], rest[j]);
        }
    }
  }
  #undef NAME_OFTEN
#else
  if (columns == 1 && outer >= threads) {
    int64_t *run = (int64_t *)(slots[a[12]] + a[13]), runs = 0; /* the first index of each, and length */
    for (int64_t i = 0, end; i < count && runs <= a[5]; i = end) {
      const int64_t k = NAME_at(index, i, n);
      for (end = i + 1; end < count && NAME_at(index, end, n) - end == k - i; end++) {}
      if (runs++ < a[5]) run[2 * runs - 2] = k, run[2 * runs - 1] = end - i;
    }
    #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t o = 0; o < outer; o++) {
      const T *p = x + o * n;
      T *q = y + o * count;
      if (runs > a[5])
        for (int64_t i = 0; i < count; i++) q[i] = p[NAME_at(index, i, n)];
      else
        for (int64_t r = 0; r < runs; q += run[2 * r++ + 1])
          if (run[2 * r + 1] == 1) *q = p[run[2 * r]];
          else mg_copy_row((char *)q, (const char *)(p + run[2 * r]), run[2 * r + 1] * sizeof *q);
    }
    return 0;
  }
  #pragma omp parallel num_threads(threads) if (threads > 1)
  {
    #pragma omp for collapse(2) schedule(static)
    for (int64_t o = 0; o < outer; o++)
      for (int64_t i = 0; i < count; i++) {
        const char *p = (const char *)(x + (o * n + NAME_at(index, i, n)) * columns);
        char *q = (char *)(y + (o * count + i) * columns);
        if (a[5]) mg_stream_copy(q, p, columns * sizeof *y);
        else mg_copy_row(q, p, columns * sizeof *y);
      }
    if (a[5]) mg_fence();
  }
#endif
  return 0;
}
