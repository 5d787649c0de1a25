/* Average pooling, forward or BACKWARD, of images in all layouts of `minigraph.ops.layout`.

   A cell is a vector of BLOCK of the LANES of a pixel, of nchw one number.  Of a row of the result a
   thread first adds up the rows of the windows (BACKWARD: the shares that windows give to a row), cell
   by cell, then along them, for CHUNK cells at a time.

   The argument block: threads, planes, h, w, rows, columns; then of either axis: the padding before,
   and where the elements that count begin and end; then the operands.  A plane is [h, w, LANES].

   T       type of an element
   W       type that is added in, float for BFLOAT16
   HEIGHT, WIDTH, DOWN, ACROSS  the window and its stride */
enum { NAME_CHUNK = 512 / BLOCK, NAME_MOST = NAME_CHUNK + WIDTH };
#if BLOCK > 1
/* Types say which vectors: gcc unrolls such short loops before it looks for vectors in them. */
typedef W NAME_cell __attribute__((vector_size(BLOCK * sizeof(W))));
typedef T NAME_stored __attribute__((vector_size(BLOCK * sizeof(T))));
typedef uint32_t NAME_bits __attribute__((vector_size(BLOCK * sizeof(uint32_t))));
#else
typedef W NAME_cell;
#endif
MG_INLINE NAME_cell NAME_load(const T *from) {
#if BLOCK > 1
  NAME_stored x;
  memcpy(&x, from, sizeof x);
#if BFLOAT16
  return (NAME_cell)(__builtin_convertvector(x, NAME_bits) << 16);
#else
  return __builtin_convertvector(x, NAME_cell);
#endif
#elif BFLOAT16
  return mg_number((uint32_t)*from << 16);
#else
  return *from;
#endif
}
MG_INLINE void NAME_store(T *to, NAME_cell x) {
#if BFLOAT16
  for (int k = 0; k < BLOCK; k++) to[k] = mg_bfloat16_of_float(((W *)&x)[k]);
#elif BLOCK > 1
  const NAME_stored y = __builtin_convertvector(x, NAME_stored);
  memcpy(to, &y, sizeof y);
#else
  *to = x;
#endif
}
/* How many elements of window i count along an axis. */
MG_INLINE W NAME_count(int64_t i, int64_t stride, int64_t window, const int64_t *axis) {
  const int64_t first = i * stride - axis[0], last = first + window;
  return (last < axis[2] ? last : axis[2]) - (first > axis[1] ? first : axis[1]);
}
/* Of `size` windows those, from `first` on, of which place x is part. */
MG_INLINE int64_t NAME_windows(int64_t x, int64_t size, int64_t stride, int64_t window,
                               int64_t *first) {
  *first = x < window ? 0 : (x - window) / stride + 1;
  return x / stride + 1 < size ? x / stride + 1 : size;
}
static void NAME_planes(const int64_t *a, char **slots, int64_t begin, int64_t end) {
  const int64_t h = a[2], w = a[3], rows = a[4], columns = a[5], top = a[6], left = a[9];
  const T *from = (const T *)(slots[a[12]] + a[13]);
  T *to = (T *)(slots[a[14]] + a[15]);
  NAME_cell sum[NAME_MOST];
#if BACKWARD
  const int64_t chunk = NAME_CHUNK;
  W count[NAME_MOST];
  NAME_cell share[NAME_MOST];
  for (int64_t c = 0; c < w; c += chunk) {
    const int64_t n = w - c < chunk ? w - c : chunk;
    int64_t j0, none;
    NAME_windows(c + left, columns, ACROSS, WIDTH, &j0);
    const int64_t j1 = NAME_windows(c + n - 1 + left, columns, ACROSS, WIDTH, &none);
    for (int64_t j = j0; j < j1; j++) count[j - j0] = NAME_count(j, ACROSS, WIDTH, a + 9);
    for (int64_t u = begin, before = -1; u < end; u++) {
      int64_t i0;
      const int64_t plane = u / h, i1 = NAME_windows(u % h + top, rows, DOWN, HEIGHT, &i0);
      /* The row above may be part of the same windows. */
      const int64_t same = ((plane * rows + i0) << 20) + i1 - i0;
      if (same == before) {
        T *out = to + (u * w + c) * LANES;
        memcpy(out, out - w * LANES, n * LANES * sizeof(T));
        continue;
      }
      before = same;
      for (int64_t k = 0; k < LANES; k += BLOCK) {
        T *out = to + (u * w + c) * LANES + k;
        for (int64_t j = 0; j < j1 - j0; j++) share[j] = (NAME_cell){0};
        for (int64_t i = i0; i < i1; i++) {
          const T *dy = from + ((plane * rows + i) * columns + j0) * LANES + k;
          const W high = NAME_count(i, DOWN, HEIGHT, a + 6);
          for (int64_t j = 0; j < j1 - j0; j++) share[j] += NAME_load(dy + j * LANES) / (high * count[j]);
        }
        for (int64_t x = 0; x < n; x++) sum[x] = (NAME_cell){0};
        for (int64_t q = 0; q < WIDTH; q++) {
          /* Of window j the place is j * ACROSS + skip here. */
          const int64_t skip = j0 * ACROSS - left - c + q;
          const int64_t first = skip < 0 ? (-skip + ACROSS - 1) / ACROSS : 0;
          int64_t last = n - skip > 0 ? (n - skip - 1) / ACROSS + 1 : 0;
          if (last > j1 - j0) last = j1 - j0;
          #pragma GCC ivdep
          for (int64_t j = first; j < last; j++) sum[j * ACROSS + skip] += share[j];
        }
        for (int64_t x = 0; x < n; x++) NAME_store(out + x * LANES, sum[x]);
      }
    }
  }
#else
  const int64_t chunk = NAME_CHUNK / ACROSS > 1 ? NAME_CHUNK / ACROSS : 1;
  W count[NAME_CHUNK];
  for (int64_t c = 0; c < columns; c += chunk) {
    const int64_t n = columns - c < chunk ? columns - c : chunk;
    /* The cells of these windows, of which those from x0 to x1 are in the image. */
    const int64_t skip = c * ACROSS - left, cells = (n - 1) * ACROSS + WIDTH;
    const int64_t x0 = skip < 0 ? (-skip < cells ? -skip : cells) : 0, x1 = w - skip < cells ? w - skip : cells;
    for (int64_t j = 0; j < n; j++) count[j] = NAME_count(c + j, ACROSS, WIDTH, a + 9);
    for (int64_t u = begin; u < end; u++) {
      const int64_t i = u % rows, row = i * DOWN - top;
      const int64_t p0 = row < 0 ? -row : 0, p1 = h - row < HEIGHT ? h - row : HEIGHT;
      const W high = NAME_count(i, DOWN, HEIGHT, a + 6);
      for (int64_t k = 0; k < LANES; k += BLOCK) {
        const T *x = from + ((u / rows * h + row) * w + skip) * LANES + k;
        T *y = to + (u * columns + c) * LANES + k;
        for (int64_t j = 0; j < cells; j++) sum[j] = (NAME_cell){0};
        for (int64_t p = p0; p < p1; p++)
          for (int64_t j = x0; j < x1; j++) sum[j] += NAME_load(x + (p * w + j) * LANES);
        for (int64_t j = 0; j < n; j++) {
          NAME_cell total = sum[j * ACROSS];
          #pragma GCC unroll 16
          for (int q = 1; q < WIDTH; q++) total += sum[j * ACROSS + q];
          NAME_store(y + j * LANES, total / (high * count[j]));
        }
      }
    }
  }
#endif
}
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], units = a[1] * (BACKWARD ? a[2] : a[4]);
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t t = 0; t < threads; t++)
    NAME_planes(a, slots, units * t / threads, units * (t + 1) / threads);
  return 0;
}
