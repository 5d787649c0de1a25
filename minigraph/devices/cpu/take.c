/* Gather y [outer, count, columns] = x [outer, n, columns] at `count` indices; or scatter-add dy to
   zeros of the shape of x (BACKWARD 1), or to a start of this shape (BACKWARD 2).  Negative indices
   count from the end (WRAPS).  Returns 1 for an index out of range, before anything is written.  With
   one column, long runs of consecutive indices are copied as a block, as in a padding by reflection.

   The argument block: threads, outer, n, columns, count; then columns of a thread (BACKWARD), or the
   most runs to copy as blocks (columns 1), or whether to use streaming stores; then the operands: x or
   dy, the indices, the start (BACKWARD 2), the result, which may be the start; then the scratch memory.

   One thread adds up each element of a gradient, in the order of the indices, so the bits are the same
   for any number of threads.  If an index occurs more than MAX_DIRECT times, its gradient is summed in W.

   T           type of an element; LOAD and STORE convert it to the type of its sums and back
   L           type of an index
   W           type of sums of many elements
   PAIRS       whether these sums are compensated
   MAX_DIRECT  number of elements that are summed in T, at most */
enum { NAME_COLUMNS = 256 };
static inline int64_t NAME_resolve(const L *index, int64_t i, int64_t n) {
  return WRAPS && index[i] < 0 ? (int64_t)index[i] + n : (int64_t)index[i];
}
#if PAIRS
#define NAME_ADD(total, error, x) mg_compensated_add(&total, &error, x)
#define NAME_SUM(total, error) mg_compensated_sum(total, error)
#else
#define NAME_ADD(total, error, x) total += x
#define NAME_SUM(total, error) total
#endif
#if BACKWARD
/* Sort the positions of the indices by index if one occurs more than MAX_DIRECT times; return whether it does.
   end_of[k] becomes the end in `order` of the positions with indices up to k. */
static int NAME_sort(const L *index, int64_t n, int64_t count, int64_t *end_of, int64_t *order) {
  int64_t sum = 0, largest = 0;
  memset(end_of, 0, n * sizeof *end_of);
  for (int64_t i = 0; i < count; i++) end_of[NAME_resolve(index, i, n)]++;
  for (int64_t k = 0; k < n; k++) {
    const int64_t index_count = end_of[k];
    if (index_count > largest) largest = index_count;
    end_of[k] = sum;
    sum += index_count;
  }
  for (int64_t i = 0; i < count && largest > MAX_DIRECT; i++) order[end_of[NAME_resolve(index, i, n)]++] = i;
  return largest > MAX_DIRECT;
}
#endif
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], outer = a[1], n = a[2], columns = a[3], count = a[4];
  const T *x = (const T *)(slots[a[6]] + a[7]);
  const L *index = (const L *)(slots[a[8]] + a[9]);
  const int64_t *operand = a + (BACKWARD == 2 ? 12 : 10);
  T *y = (T *)(slots[operand[0]] + operand[1]);
  (void)threads;
  L smallest = 0, largest = 0;
  for (int64_t i = 0; i < count; i++) {
    smallest = index[i] < smallest ? index[i] : smallest;
    largest = index[i] > largest ? index[i] : largest;
  }
  if ((smallest < 0 && (!WRAPS || (int64_t)smallest < -n)) || (uint64_t)largest >= (uint64_t)n) return 1;
#if BACKWARD
  const int64_t block = a[5], blocks = (columns + block - 1) / block;
  int64_t *end_of = count > MAX_DIRECT ? (int64_t *)(slots[operand[2]] + operand[3]) : NULL, *order = end_of + n;
  if (end_of && !NAME_sort(index, n, count, end_of, order)) end_of = NULL;
  #define NAME_FREQUENT(k) (end_of && end_of[k] - (k ? end_of[k - 1] : 0) > MAX_DIRECT)
  #pragma omp parallel num_threads(threads) if (threads > 1)
  {
#if BACKWARD == 2
    const T *start = (const T *)(slots[a[10]] + a[11]);
    #pragma omp for schedule(static)
    for (int64_t e = 0; e < (start == y ? 0 : outer * n * columns); e++) y[e] = start[e];
#else
    #pragma omp for schedule(static)
    for (int64_t e = 0; e < outer * n * columns; e++) y[e] = 0;
#endif
    #pragma omp for schedule(static)
    for (int64_t task = 0; task < outer * blocks; task++) {
      const int64_t o = task / blocks, first = task % blocks * block;
      const int64_t width = columns - first < block ? columns - first : block;
      if (columns == 1 && !end_of) {
        for (int64_t i = 0; i < count; i++) {
          T *q = y + o * n + NAME_resolve(index, i, n);
          *q = STORE(LOAD(*q) + LOAD(x[o * count + i]));
        }
        continue;
      }
      for (int64_t i = 0; i < count; i++) {
        const int64_t k = NAME_resolve(index, i, n);
        if (NAME_FREQUENT(k)) continue;
        const T *p = x + (o * count + i) * columns + first;
        T *q = y + (o * n + k) * columns + first;
        #pragma omp simd
        for (int64_t j = 0; j < width; j++) q[j] = STORE(LOAD(q[j]) + LOAD(p[j]));
      }
      for (int64_t k = 0; end_of && k < n; k++)
        for (int64_t offset = 0; NAME_FREQUENT(k) && offset < width; offset += NAME_COLUMNS) {
          const int64_t part = width - offset < NAME_COLUMNS ? width - offset : NAME_COLUMNS;
          W total[NAME_COLUMNS], error[NAME_COLUMNS] = {0};
          T *q = y + (o * n + k) * columns + first + offset;
          for (int64_t j = 0; j < part; j++) total[j] = LOAD(q[j]);
          for (int64_t i = k ? end_of[k - 1] : 0; i < end_of[k]; i++) {
            const T *p = x + (o * count + order[i]) * columns + first + offset;
            #pragma omp simd
            for (int64_t j = 0; j < part; j++) NAME_ADD(total[j], error[j], LOAD(p[j]));
          }
          for (int64_t j = 0; j < part; j++) q[j] = STORE(NAME_SUM(total[j], error[j]));
        }
    }
  }
  #undef NAME_FREQUENT
#else
  if (columns == 1 && outer >= threads) {
    int64_t *run = (int64_t *)(slots[operand[2]] + operand[3]), runs = 0; /* {first index, length} */
    for (int64_t i = 0, end; i < count && runs <= a[5]; i = end) {
      const int64_t k = NAME_resolve(index, i, n);
      for (end = i + 1; end < count && NAME_resolve(index, end, n) - end == k - i; end++) {}
      if (runs++ < a[5]) run[2 * runs - 2] = k, run[2 * runs - 1] = end - i;
    }
    #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t o = 0; o < outer; o++) {
      const T *p = x + o * n;
      T *q = y + o * count;
      if (runs > a[5])
        for (int64_t i = 0; i < count; i++) q[i] = p[NAME_resolve(index, i, n)];
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
        const char *p = (const char *)(x + (o * n + NAME_resolve(index, i, n)) * columns);
        char *q = (char *)(y + (o * count + i) * columns);
        if (a[5]) mg_stream_copy(q, p, columns * sizeof *y);
        else mg_copy_row(q, p, columns * sizeof *y);
      }
    if (a[5]) mg_fence();
  }
#endif
  return 0;
}
