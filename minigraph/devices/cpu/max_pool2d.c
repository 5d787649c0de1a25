/* Max pooling, forward or BACKWARD.

   Of images [n, c, h, w] a thread goes through the window for each row of the output, and for each
   place in the window along the row, so that the innermost loop is a choice between vectors.  In the
   other layouts of `minigraph.ops.layout` the LANES of a pixel are the vectors, and a thread goes
   along a row of the output window by window.

   The argument block: threads, planes, h, w, rows, columns, the padding before h and w, then the
   operands; a plane is [h, w, LANES].  Window and stride are macros: strided loads become vectors
   and shuffles.

   T       type of an element; LOWEST is its least value, MASK an integer of its size
   P       type of a place: the index of the largest element in the window
   LANES   elements of a pixel; BLOCK of them, a divisor, are a vector
   HEIGHT, WIDTH, DOWN, ACROSS  the window and its stride */
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], planes = a[1], h = a[2], w = a[3], rows = a[4], columns = a[5];
  const int64_t top = a[6], left = a[7];
  (void)h, (void)threads;
#if BACKWARD
  const T *dy = (const T *)(slots[a[8]] + a[9]);
  const P *place = (const P *)(slots[a[10]] + a[11]);
  T *dx = (T *)(slots[a[12]] + a[13]);
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t plane = 0; plane < planes; plane++) {
    T *to = dx + plane * h * w * LANES;
    int64_t begun = 0;
    for (int64_t i = 0; i < rows; i++) {
      /* Write zeros just before the first window that reaches them: they stay in the cache. */
      const int64_t reach = i * DOWN - top + HEIGHT, end = reach < h && i + 1 < rows ? reach : h;
      if (begun < end) {
        memset(to + begun * w * LANES, 0, (end - begun) * w * LANES * sizeof(T));
        begun = end;
      }
      for (int64_t j = 0; j < columns; j++) {
        const int64_t corner = (i * DOWN - top) * w + j * ACROSS - left;
        for (int64_t k = 0; k < LANES; k++) {
          const int64_t o = ((plane * rows + i) * columns + j) * LANES + k, at = place[o];
          to[(corner + at + at / WIDTH * (w - WIDTH)) * LANES + k] += dy[o];
        }
      }
    }
  }
#else
  const T *x = (const T *)(slots[a[8]] + a[9]);
  T *y = (T *)(slots[a[10]] + a[11]);
  P *place = (P *)(slots[a[12]] + a[13]);
#if LANES == 1
  enum { MOST = 1024 }; /* elements of a row that are computed at once */
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t plane = 0; plane < planes; plane++)
    for (int64_t i = 0; i < rows; i++)
      for (int64_t begin = 0; begin < columns; begin += MOST) {
        const int64_t count = columns - begin < MOST ? columns - begin : MOST;
        const int64_t skip = left - begin * ACROSS; /* padding before the first of them */
        T *best = y + (plane * rows + i) * columns + begin;
        int32_t at[MOST]; /* as wide as most elements, so that both are vectors of one length */
        int begun = 0;    /* a window may begin in the padding: start with its first pixel */
        for (int64_t p = 0; p < HEIGHT; p++) {
          const int64_t row = i * DOWN - top + p;
          if (row < 0 || row >= h) continue;
          const T *from = x + (plane * h + row) * w - skip;
          for (int64_t q = 0; q < WIDTH; q++) {
            const int64_t first = skip > q ? (skip - q + ACROSS - 1) / ACROSS : 0;
            int64_t last = w + skip - q > 0 ? (w + skip - q - 1) / ACROSS + 1 : 0;
            if (last > count) last = count;
            if (!begun) {
              for (int64_t j = 0; j < count; j++) {
                best[j] = LOWEST;
                at[j] = p * WIDTH + (j * ACROSS < skip ? skip - j * ACROSS : 0);
              }
              begun = 1;
            }
            #pragma GCC ivdep
            for (int64_t j = first; j < last; j++) {
              const T v = from[j * ACROSS + q];
              const int better = v > best[j] || (v != v && best[j] == best[j]);
              best[j] = better ? v : best[j];
              at[j] = better ? (int32_t)(p * WIDTH + q) : at[j];
            }
          }
        }
        P *kept = place + (plane * rows + i) * columns + begin;
        for (int64_t j = 0; j < count; j++) kept[j] = at[j];
      }
#else
  /* Types say which vectors: gcc unrolls such short loops before it looks for vectors in them. */
  typedef T values __attribute__((vector_size(BLOCK * sizeof(T))));
  typedef MASK mask __attribute__((vector_size(BLOCK * sizeof(T))));
  typedef int32_t numbers __attribute__((vector_size(BLOCK * sizeof(int32_t))));
  typedef P places __attribute__((vector_size(BLOCK * sizeof(P))));
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t u = 0; u < planes * rows; u++) {
    const int64_t row = u % rows * DOWN - top;
    const int64_t p0 = row < 0 ? -row : 0, p1 = h - row < HEIGHT ? h - row : HEIGHT;
    for (int64_t j = 0; j < columns; j++) {
      const int64_t column = j * ACROSS - left;
      const int64_t q0 = column < 0 ? -column : 0, q1 = w - column < WIDTH ? w - column : WIDTH;
      const T *from = x + ((u / rows * h + row) * w + column) * LANES;
      for (int64_t k = 0; k < LANES; k += BLOCK) {
        values best = (values){0} + LOWEST;
        numbers at = (numbers){0} + (int32_t)(p0 * WIDTH + q0);
        for (int64_t p = p0; p < p1; p++)
          for (int64_t q = q0; q < q1; q++) {
            values v;
            memcpy(&v, from + (p * w + q) * LANES + k, sizeof v);
            const mask better = ~(v <= best) & (best == best);
            const numbers moved = __builtin_convertvector(better, numbers);
            best = (values)(((mask)v & better) | ((mask)best & ~better));
            at = ((int32_t)(p * WIDTH + q) & moved) | (at & ~moved);
          }
        const places kept = __builtin_convertvector(at, places);
        memcpy(y + (u * columns + j) * LANES + k, &best, sizeof best);
        memcpy(place + (u * columns + j) * LANES + k, &kept, sizeof kept);
      }
    }
  }
#endif
#endif
  return 0;
}
