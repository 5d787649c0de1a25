/* Elements chosen by indices that each row along an axis has of its own.  Negative indices count
   from the end (WRAPS); those out of range are refused (1) before an operand is overwritten.

   MODE 0  y [outer, count, columns] = x [outer, n, columns] at the indices [outer, count, columns]
   MODE 1  y [outer, n, columns]: zeros with x [outer, count, columns] added at the indices
   MODE 2  y [outer, n, columns] = x with v [outer, count, columns] put at the indices in turn

   The argument block: threads, outer, n, columns, count, columns that one thread writes to, then the
   operands: x, the indices, v (MODE 2), the result, which may be x in MODE 2; then the scratch memory
   (APART).

   Each element is written by one thread in the order of the indices: the bits are the same for any
   number of threads.

   T      type of an element of the result
   L      type of an index
   W      type in which MODE 1 adds up APART: in each thread's scratch memory [n, columns that it writes
          to]; else it adds in place
   PAIRS  whether what sums round off is added up, too, behind them */
enum { NAME_BESIDE = 4 }; /* elements, or rows, that are done side by side */
/* Where along an axis of n elements an index points; 0 if it is out of range. */
MG_INLINE int64_t NAME_at(L index, int64_t n, int *outside) {
  if (__builtin_expect((uint64_t)index < (uint64_t)n, 1)) return index;
  if (WRAPS && index < 0 && (int64_t)index >= -n) return index + n;
  *outside = 1;
  return 0;
}
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
    for (int64_t i = begin, stop, place = begin % count; i < end; i = stop, place = 0) {
      stop = i + count - place < end ? i + count - place : end;
      int64_t k = i;
      for (; columns == 1 && k + NAME_BESIDE <= stop; k += NAME_BESIDE)
        #pragma GCC unroll 4
        for (int u = 0; u < NAME_BESIDE; u++) y[k + u] = from[NAME_at(index[k + u], n, &outside)];
      if (columns == 1)
        for (; k < stop; k++) y[k] = from[NAME_at(index[k], n, &outside)];
      else
        for (k = i * columns; k < stop * columns; k += columns)
          for (int64_t j = 0; j < columns; j++)
            y[k + j] = from[NAME_at(index[k + j], n, &outside) * columns + j];
      from += n * columns;
    }
  }
#else
  const int64_t block = a[5], blocks = (columns + block - 1) / block;
  /* Rows of single elements are several side by side: an addition waits for one before it that has the
     same place, which is rare then. */
  const int64_t most = columns == 1 && outer >= NAME_BESIDE * threads ? NAME_BESIDE : 1;
  for (int64_t e = 0; MODE == 2 && x == y && e < outer * count * columns; e++)
    NAME_at(index[e], n, &outside);
  if (outside) return 1;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) \
    reduction(| : outside)
  for (int64_t w = 0; w < (outer + most - 1) / most * blocks; w++) {
    const int64_t o = w / blocks * most, first = w % blocks * block;
    const int64_t rows = outer - o < most ? outer - o : most;
    const int64_t wide = columns - first < block ? columns - first : block;
    T *const row = y + o * n * columns + first;
    /* Whole rows lie one behind the other. */
    const int64_t parts = wide == columns ? 1 : n, each = rows * n * wide / parts;
#if APART
    const int64_t pitch = wide;
    W *const mine = (W *)(slots[operand[2]] + operand[3]);
    W *const to = mine + omp_get_thread_num() * n * block * (1 + PAIRS), *const rest = to + n * block;
    memset(to, 0, rows * n * wide * sizeof *to);
    if (PAIRS) memset(rest, 0, rows * n * wide * sizeof *rest);
#else
    const int64_t pitch = columns;
    T *const to = row;
    for (int64_t k = 0; k < parts && (MODE == 1 || x != y); k++)
      for (int64_t j = 0; j < each; j++)
        to[k * columns + j] = MODE == 1 ? 0 : x[o * n * columns + first + k * columns + j];
#endif
#if PAIRS
#define NAME_PUT(at, value) mg_compensated_add(to + (at), rest + (at), value)
#elif MODE == 1
#define NAME_PUT(at, value) to[at] += value
#else
#define NAME_PUT(at, value) to[at] = value
#endif
    const L *at = index + o * count * columns + first;
    const T *from = (MODE == 2 ? v : x) + o * count * columns + first;
    if (rows == NAME_BESIDE)
      for (int64_t k = 0; k < count; k++)
        #pragma GCC unroll 4
        for (int r = 0; r < NAME_BESIDE; r++) {
          const int64_t place = r * n + NAME_at(at[r * count + k], n, &outside);
          NAME_PUT(place, from[r * count + k]);
        }
    else
      for (int64_t k = 0; k < rows * count; k++, at += columns, from += columns)
        for (int64_t j = 0; j < wide; j++) {
          const int64_t place = k / count * n + NAME_at(at[j], n, &outside);
          NAME_PUT(place * pitch + j, from[j]);
        }
#if APART
    for (int64_t k = 0; k < parts; k++)
      for (int64_t j = 0; j < each; j++)
#if PAIRS
        row[k * columns + j] = mg_compensated_sum(to[k * wide + j], rest[k * wide + j]);
#else
        row[k * columns + j] = to[k * wide + j];
#endif
#endif
  }
#endif
  return outside;
}
