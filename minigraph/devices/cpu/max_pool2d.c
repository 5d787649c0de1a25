/* Max pooling, forward or BACKWARD.

   Of images [n, c, h, w] a thread goes through the window for each row of the output, and for each
   place in the window along the row, so that the innermost loop is a choice between vectors.  In the
   other layouts of `minigraph.ops.layout` the LANES of a pixel are the vectors, and a thread goes
   along a row of the output window by window.

   The argument block: threads, planes, h, w, rows, columns, the padding before h and w, then the
   operands and the scratch memory; a plane is [h, w, LANES].  Window and stride are macros: strided
   loads become vectors and shuffles.

   T       type of an element
   W       type that it is compared and added in, float for BFLOAT16, which takes more than one lane;
           LOWEST is its least value, MASK an integer of its size.  APART a thread adds gradients up
           in the scratch memory, and rounds the rows that no further window reaches
   P       type of a place: the index of the largest element in the window
   LANES   elements of a pixel; BLOCK of them, a divisor, are a vector
   HEIGHT, WIDTH, DOWN, ACROSS  the window and its stride */
#if BFLOAT16
#define WIDE(x) mg_number((uint32_t)(x) << 16)
#define NARROW(x) mg_bfloat16_of_float(x)
#define WIDE_VECTOR(x) ((values)(__builtin_convertvector(x, bits) << 16))
#define NARROW_VECTOR(x) __builtin_convertvector((bits)(x) >> 16, stored)
#else
#define WIDE(x) (x)
#define NARROW(x) (x)
#define WIDE_VECTOR(x) (x)
#define NARROW_VECTOR(x) (x)
#endif
#if LANES > 1 && !BACKWARD
/* The largest elements of a window in BLOCK lanes, and their places: of its rows from p0 to p1, and
   columns from q0 to q1. */
static inline __attribute__((always_inline))
void NAME_window(const T *from, int64_t w, int64_t p0, int64_t p1, int64_t q0, int64_t q1, T *y, P *place) {
  /* Types say which vectors: gcc unrolls such short loops before it looks for vectors in them. */
  typedef T stored __attribute__((vector_size(BLOCK * sizeof(T))));
  typedef W values __attribute__((vector_size(BLOCK * sizeof(W))));
  typedef uint32_t bits __attribute__((vector_size(BLOCK * sizeof(uint32_t))));
  typedef MASK mask __attribute__((vector_size(BLOCK * sizeof(W))));
  typedef int32_t numbers __attribute__((vector_size(BLOCK * sizeof(int32_t))));
  typedef P places __attribute__((vector_size(BLOCK * sizeof(P))));
  values best = (values){0} + LOWEST;
  numbers at = (numbers){0} + (int32_t)(p0 * WIDTH + q0);
  for (int64_t p = p0; p < p1; p++)
    for (int64_t q = q0; q < q1; q++) {
      stored pixel;
      memcpy(&pixel, from + (p * w + q) * LANES, sizeof pixel);
      const values v = WIDE_VECTOR(pixel);
      const mask better = ~(v <= best) & (best == best);
      const numbers moved = __builtin_convertvector(better, numbers);
      best = (values)(((mask)v & better) | ((mask)best & ~better));
      at = ((int32_t)(p * WIDTH + q) & moved) | (at & ~moved);
    }
  const places kept = __builtin_convertvector(at, places);
  const stored most = NARROW_VECTOR(best);
  memcpy(y, &most, sizeof most);
  memcpy(place, &kept, sizeof kept);
}
#endif
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
    T *out = dx + plane * h * w * LANES;
#if APART
    W *to = (W *)(slots[a[14]] + a[15]) + omp_get_thread_num() * h * w * LANES;
    int64_t rounded = 0;
#else
    W *to = out;
#endif
    int64_t begun = 0;
    for (int64_t i = 0; i < rows; i++) {
      /* Write zeros just before the first window that reaches them: they stay in the cache. */
      const int64_t reach = i * DOWN - top + HEIGHT, end = reach < h && i + 1 < rows ? reach : h;
      if (begun < end) {
        memset(to + begun * w * LANES, 0, (end - begun) * w * LANES * sizeof(W));
        begun = end;
      }
      for (int64_t j = 0; j < columns; j++) {
        const int64_t corner = (i * DOWN - top) * w + j * ACROSS - left;
        for (int64_t k = 0; k < LANES; k++) {
          const int64_t o = ((plane * rows + i) * columns + j) * LANES + k, at = place[o];
          to[(corner + at + at / WIDTH * (w - WIDTH)) * LANES + k] += WIDE(dy[o]);
        }
      }
#if APART
      const int64_t next = (i + 1) * DOWN - top, done = next < begun && i + 1 < rows ? next : begun;
      for (int64_t o = rounded * w * LANES; o < done * w * LANES; o++)
        out[o] = NARROW(to[o]);
      if (done > rounded) rounded = done;
#endif
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
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t u = 0; u < planes * rows; u++) {
    const int64_t row = u % rows * DOWN - top;
    const int64_t p0 = row < 0 ? -row : 0, p1 = h - row < HEIGHT ? h - row : HEIGHT;
    for (int64_t j = 0; j < columns; j++) {
      const int64_t column = j * ACROSS - left;
      const int64_t q0 = column < 0 ? -column : 0, q1 = w - column < WIDTH ? w - column : WIDTH;
      const T *from = x + ((u / rows * h + row) * w + column) * LANES;
      const int64_t o = (u * columns + j) * LANES;
      /* gcc unrolls a window that it knows the bounds of. */
      if (p1 - p0 == HEIGHT && q1 - q0 == WIDTH)
        for (int64_t k = 0; k < LANES; k += BLOCK)
          NAME_window(from + k, w, 0, HEIGHT, 0, WIDTH, y + o + k, place + o + k);
      else
        for (int64_t k = 0; k < LANES; k += BLOCK)
          NAME_window(from + k, w, p0, p1, q0, q1, y + o + k, place + o + k);
    }
  }
#endif
#endif
  return 0;
}
#undef WIDE
#undef NARROW
#undef WIDE_VECTOR
#undef NARROW_VECTOR
