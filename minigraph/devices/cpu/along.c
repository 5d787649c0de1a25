/* Gather, scatter-add or scatter elements along an axis, by indices that each element has of its own.
   Negative indices count from the end (WRAPS).  Returns 1 for an index out of range, before an operand
   is overwritten.

   MODE 0  y [outer, count, columns] = x [outer, n, columns] at the indices [outer, count, columns]
   MODE 1  y [outer, n, columns]: zeros, with v [outer, count, columns] added at the indices
   MODE 2  y [outer, n, columns]: x, with v [outer, count, columns] added at the indices
   MODE 3  y [outer, n, columns]: x, with v [outer, count, columns] stored at the indices, in order

   The argument block: threads, outer, n, columns, count, columns of a thread, then the operands: x and
   the indices (MODE 0), v and the indices (MODE 1), v, the indices and x (MODE 2) or x, the indices and v
   (MODE 3); the result, which may be x in the modes 2 and 3; then the scratch memory (IN_SCRATCH).

   One thread writes each element, in the order of the indices, so the bits are the same for any number
   of threads.

   T           type of an element of the result
   L           type of an index
   W           type of the sums of the modes 1 and 2
   IN_SCRATCH  whether sums are in each thread's scratch memory [n, columns of a thread], not in place
   PAIRS       whether sums are compensated: their errors follow them in the scratch memory */
enum { NAME_UNROLL = 4 }; /* elements, or rows, of an iteration */
/* Return the position in an axis of n elements; for an index out of range 0, with *invalid set. */
MG_INLINE int64_t NAME_resolve(L index, int64_t n, int *invalid) {
  if (__builtin_expect((uint64_t)index < (uint64_t)n, 1)) return index;
  if (WRAPS && index < 0 && (int64_t)index >= -n) return index + n;
  *invalid = 1;
  return 0;
}
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], outer = a[1], n = a[2], columns = a[3], count = a[4];
  const int64_t *operand = a + 6;
  (void)threads;
  const T *const first_operand = (const T *)(slots[operand[0]] + operand[1]);
  const L *const index = (const L *)(slots[operand[2]] + operand[3]);
  const T *const third_operand = (const T *)(slots[operand[4]] + operand[5]); /* modes 2 and 3 */
  const T *const x = MODE == 2 ? third_operand : first_operand;
  const T *const v = MODE == 3 ? third_operand : first_operand;
  operand += MODE >= 2 ? 6 : 4;
  T *y = (T *)(slots[operand[0]] + operand[1]);
  int invalid = 0;
  (void)x, (void)v;
#if MODE == 0
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) \
    reduction(| : invalid)
  for (int64_t t = 0; t < threads; t++) {
    const int64_t begin = t * outer * count / threads, end = (t + 1) * outer * count / threads;
    const T *from = x + begin / count * n * columns;
    for (int64_t i = begin, row_end, position = begin % count; i < end; i = row_end, position = 0) {
      row_end = i + count - position < end ? i + count - position : end;
      int64_t k = i;
      for (; columns == 1 && k + NAME_UNROLL <= row_end; k += NAME_UNROLL)
        #pragma GCC unroll 4
        for (int u = 0; u < NAME_UNROLL; u++) y[k + u] = from[NAME_resolve(index[k + u], n, &invalid)];
      if (columns == 1)
        for (; k < row_end; k++) y[k] = from[NAME_resolve(index[k], n, &invalid)];
      else
        for (k = i * columns; k < row_end * columns; k += columns)
          for (int64_t j = 0; j < columns; j++)
            y[k + j] = from[NAME_resolve(index[k + j], n, &invalid) * columns + j];
      from += n * columns;
    }
  }
#else
  const int64_t block = a[5], blocks = (columns + block - 1) / block;
  /* Interleave rows of one column: an addition waits for the one before if both have the same position,
     which is rare then. */
  const int64_t group = columns == 1 && outer >= NAME_UNROLL * threads ? NAME_UNROLL : 1;
  for (int64_t e = 0; MODE >= 2 && x == y && e < outer * count * columns; e++)
    NAME_resolve(index[e], n, &invalid);
  if (invalid) return 1;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) \
    reduction(| : invalid)
  for (int64_t task = 0; task < (outer + group - 1) / group * blocks; task++) {
    const int64_t o = task / blocks * group, first = task % blocks * block;
    const int64_t rows = outer - o < group ? outer - o : group;
    const int64_t width = columns - first < block ? columns - first : block;
    T *const row = y + o * n * columns + first;
    /* Rows of all columns are contiguous: one run instead of n. */
    const int64_t runs = width == columns ? 1 : n, run_length = rows * n * width / runs;
#if IN_SCRATCH
    const int64_t pitch = width;
    W *const scratch = (W *)(slots[operand[2]] + operand[3]);
    W *const to = scratch + omp_get_thread_num() * n * block * (1 + PAIRS), *const error = to + n * block;
    if (PAIRS) memset(error, 0, rows * n * width * sizeof *error);
#else
    const int64_t pitch = columns;
    T *const to = row;
#endif
    for (int64_t k = 0; k < runs && (IN_SCRATCH || MODE == 1 || x != y); k++)
      for (int64_t j = 0; j < run_length; j++)
        to[k * pitch + j] = MODE == 1 ? 0 : x[o * n * columns + first + k * columns + j];
#if PAIRS
#define NAME_COMBINE(at, value) mg_compensated_add(to + (at), error + (at), value)
#elif MODE != 3
#define NAME_COMBINE(at, value) to[at] += value
#else
#define NAME_COMBINE(at, value) to[at] = value
#endif
    const L *at = index + o * count * columns + first;
    const T *from = v + o * count * columns + first;
    if (rows == NAME_UNROLL)
      for (int64_t k = 0; k < count; k++)
        #pragma GCC unroll 4
        for (int r = 0; r < NAME_UNROLL; r++) {
          const int64_t position = r * n + NAME_resolve(at[r * count + k], n, &invalid);
          NAME_COMBINE(position, from[r * count + k]);
        }
    else
      for (int64_t k = 0; k < rows * count; k++, at += columns, from += columns)
        for (int64_t j = 0; j < width; j++) {
          const int64_t position = k / count * n + NAME_resolve(at[j], n, &invalid);
          NAME_COMBINE(position * pitch + j, from[j]);
        }
#if IN_SCRATCH
    for (int64_t k = 0; k < runs; k++)
      for (int64_t j = 0; j < run_length; j++)
#if PAIRS
        row[k * columns + j] = mg_compensated_sum(to[k * width + j], error[k * width + j]);
#else
        row[k * columns + j] = to[k * width + j];
#endif
#endif
  }
#endif
  return invalid;
}
