/* Elements chosen by indices that each row along an axis has of its own.  Negative indices count
   from the end (WRAPS); those out of range are refused (1) before an operand is overwritten.

   MODE 0  y [outer, count, columns] = x [outer, n, columns] at the indices [outer, count, columns]
   MODE 1  y [outer, n, columns]: zeros with x [outer, count, columns] added at the indices
   MODE 2  y [outer, n, columns] = x with v [outer, count, columns] put at the indices in turn

   The argument block: threads, outer, n, columns, count, columns that one thread writes to, then the
   operands: x, the indices, v (MODE 2), the result, which may be x in MODE 2; then the scratch memory
   (APART).

   Each element is written by one thread in the order of the indices: the bits are the same for any
   number of threads.  Indices are checked in stretches, which are in the cache when they are used.

   T  type of an element of the result
   L  type of an index
   W  type in which MODE 1 adds up APART: in each thread's scratch memory [n, columns that it writes
      to]; else it adds in place */
enum { NAME_STRETCH = 512 };
static inline int NAME_outside(const L *index, int64_t count, int64_t n) {
  L least = 0, most = 0;
  for (int64_t e = 0; e < count; e++) {
    least = index[e] < least ? index[e] : least;
    most = index[e] > most ? index[e] : most;
  }
  return (least < 0 && (!WRAPS || (int64_t)least < -n)) || (uint64_t)most >= (uint64_t)n;
}
/* Where in a column [n, pitch] an index points. */
#define NAME_AT(column, index, pitch) \
  ((WRAPS && (index) < 0 ? (column) + n * (pitch) : (column))[(int64_t)(index) * (pitch)])
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], outer = a[1], n = a[2], columns = a[3], count = a[4];
  const int64_t *operand = a + 6;
  (void)threads;
  const T *x = (const T *)(slots[operand[0]] + operand[1]);
  operand += 2;
  const L *index = (const L *)(slots[operand[0]] + operand[1]);
  operand += 2;
  const T *v = (const T *)(slots[operand[0]] + operand[1]); /* MODE 2 */
  operand += MODE == 2 ? 2 : 0;
  T *y = (T *)(slots[operand[0]] + operand[1]);
  int outside = 0;
  (void)v;
#if MODE == 0
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) \
    reduction(| : outside)
  for (int64_t t = 0; t < threads; t++) {
    const int64_t begin = t * outer * count / threads, end = (t + 1) * outer * count / threads;
    const T *from = x + begin / count * n * columns;
    int64_t place = begin % count; /* of the next index in its row */
    for (int64_t i = begin, stop; i < end && !outside; i = stop) {
      stop = i + (NAME_STRETCH / columns > 1 ? NAME_STRETCH / columns : 1);
      if (stop > end) stop = end;
      outside = NAME_outside(index + i * columns, (stop - i) * columns, n);
      for (int64_t some; i < stop && !outside; i += some) {
        some = count - place < stop - i ? count - place : stop - i;
        const L *at = index + i * columns;
        T *to = y + i * columns;
        if (columns == 1)
          for (int64_t k = 0; k < some; k++) to[k] = NAME_AT(from, at[k], 1);
        else
          for (int64_t k = 0; k < some; k++, at += columns, to += columns)
            for (int64_t j = 0; j < columns; j++) to[j] = NAME_AT(from + j, at[j], columns);
        if ((place += some) == count) place = 0, from += n * columns;
      }
    }
  }
#else
  const int64_t block = a[5], blocks = (columns + block - 1) / block;
  if (MODE == 2 && x == y && NAME_outside(index, outer * count * columns, n)) return 1;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) \
    reduction(| : outside)
  for (int64_t w = 0; w < outer * blocks; w++) {
    const int64_t o = w / blocks, first = w % blocks * block;
    const int64_t wide = columns - first < block ? columns - first : block;
    T *const row = y + o * n * columns + first;
#if APART
    const int64_t pitch = wide;
    W *const to = (W *)(slots[operand[2]] + operand[3]) + omp_get_thread_num() * n * block;
    memset(to, 0, n * wide * sizeof *to);
#else
    const int64_t pitch = columns;
    T *const to = row;
    /* Whole rows lie one behind the other. */
    const int64_t parts = wide == columns ? 1 : n, each = n * wide / parts;
    for (int64_t k = 0; k < parts && (MODE == 1 || x != y); k++)
      for (int64_t j = 0; j < each; j++)
        to[k * columns + j] = MODE == 1 ? 0 : x[o * n * columns + first + k * columns + j];
#endif
#if MODE == 1
#define NAME_PUT(at, value) at += value
#else
#define NAME_PUT(at, value) at = value
#endif
    for (int64_t i = 0, some; i < count; i += some) {
      some = columns > 1 ? 1 : count - i < NAME_STRETCH ? count - i : NAME_STRETCH;
      const L *at = index + (o * count + i) * columns + first;
      const T *from = (MODE == 2 ? v : x) + (o * count + i) * columns + first;
      if (NAME_outside(at, columns > 1 ? wide : some, n)) {
        outside = 1;
        break;
      }
      if (columns == 1)
        for (int64_t k = 0; k < some; k++) NAME_PUT(NAME_AT(to, at[k], 1), from[k]);
      else
        for (int64_t j = 0; j < wide; j++) NAME_PUT(NAME_AT(to + j, at[j], pitch), from[j]);
    }
#if APART
    const int64_t parts = wide == columns ? 1 : n, each = n * wide / parts;
    for (int64_t k = 0; k < parts; k++)
      for (int64_t j = 0; j < each; j++) row[k * columns + j] = to[k * wide + j];
#else
    (void)row;
#endif
  }
#endif
  return outside;
}
