/* Max pooling, forward or BACKWARD.

   Of images [n, c, h, w] a thread compares the rows of the windows, cell by cell, then the cells of
   each window, for several rows of the output at a time, so that the innermost loops are choices
   between vectors.  In the other layouts of `minigraph.ops.layout` the LANES of a pixel are the vectors, and a thread goes
   along a row of the output window by window.

   The argument block: threads, planes, h, w, rows, columns, the padding before h and w, then the
   operands and the scratch memory; a plane is [h, w, LANES].  Window and stride are macros: strided
   loads become vectors and shuffles.

   T       type of an element
   W       type that it is compared and added in, float for BFLOAT16, which takes more than one lane;
           LOWEST is its least value, MASK an integer of its size.  APART a thread adds gradients up
           in the scratch memory, and rounds the rows that no further window reaches
   P       type of a place: the index of the largest element in the window; PLACE while it is looked for
   PLAIN   whether windows are pieces of a row, side by side
   ROOM    cells that are compared at a time, at most, in SPAN of the scratch memory
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
  const int64_t units = planes * rows, most = ROOM / ACROSS - (WIDTH - 1) / ACROSS;
  const int64_t chunk = columns < most ? columns : most;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t t = 0; t < threads; t++) {
    char *const mine = slots[a[14]] + a[15] + t * SPAN * 2 * (sizeof(W) + sizeof(PLACE));
    W *compared = (W *)mine, *best = compared + SPAN;
    PLACE *in = (PLACE *)(best + SPAN), *at = in + SPAN;
    const int64_t end = units * (t + 1) / threads;
    for (int64_t c = 0; c < columns; c += chunk) {
      /* Cells of these columns' windows, of which those from x0 to x1 are in the image; `wide` windows
         begin in the cells of a row. */
      const int64_t n = columns - c < chunk ? columns - c : chunk, skip = c * ACROSS - left;
      const int64_t wide = n - 1 + (WIDTH + ACROSS - 1) / ACROSS, cells = wide * ACROSS;
      const int64_t x0 = skip < 0 ? -skip : 0, x1 = w - skip < cells ? w - skip : cells;
      for (int64_t u = units * t / threads, some; u < end; u += some) {
        some = PLAIN && cells < w ? 1 : ROOM / cells;
        if (some > end - u) some = end - u;
        const W *cell = PLAIN ? (const W *)x + u * w + skip : compared;
        for (int64_t g = 0; g < some && !PLAIN; g++) {
          const int64_t row = (u + g) % rows * DOWN - top;
          const int64_t p0 = row < 0 ? -row : 0, p1 = h - row < HEIGHT ? h - row : HEIGHT;
          const T *from = x + ((u + g) / rows * h + row) * w + skip;
          W *to = compared + g * cells;
          PLACE *p = in + g * cells;
          for (int64_t j = 0; j < x0; j++) to[j] = LOWEST, p[j] = HEIGHT;
          for (int64_t j = x1; j < cells; j++) to[j] = LOWEST, p[j] = HEIGHT;
          for (int64_t j = x0; j < x1; j++) to[j] = from[p0 * w + j], p[j] = p0;
          for (int64_t r = p0 + 1; r < p1; r++) {
            #pragma GCC ivdep
            for (int64_t j = x0; j < x1; j++) {
              const W v = from[r * w + j], m = to[j];
              const int better = (v > m) | ((v != v) & (m == m));
              to[j] = better ? v : m;
              p[j] = better ? (PLACE)r : p[j];
            }
          }
        }
        #pragma GCC ivdep
        for (int64_t j = 0; j < some * wide; j++)
          best[j] = cell[j * ACROSS], at[j] = PLAIN ? 0 : in[j * ACROSS] * WIDTH;
        for (int64_t q = 1; q < WIDTH; q++) {
          #pragma GCC ivdep
          for (int64_t j = 0; j < some * wide; j++) {
            const W v = cell[j * ACROSS + q], m = best[j];
            const PLACE here = (PLAIN ? 0 : in[j * ACROSS + q] * WIDTH) + q, there = at[j];
            const int sooner = (here < there) & ((v == m) | ((v != v) & (m != m)));
            const int better = (v > m) | ((v != v) & (m == m)) | sooner;
            best[j] = better ? v : m;
            at[j] = better ? here : there;
          }
        }
        for (int64_t g = 0; g < some; g++)
          for (int64_t j = 0; j < n; j++) {
            y[(u + g) * columns + c + j] = best[g * wide + j];
            place[(u + g) * columns + c + j] = at[g * wide + j];
          }
      }
    }
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
