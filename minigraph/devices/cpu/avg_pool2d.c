/* Average pooling, forward or BACKWARD, of images in all layouts of `minigraph.ops.layout`.

   A vector has BLOCK of the LANES of a pixel, in nchw one number.  For a row of the result, a thread
   sums the rows of the windows (BACKWARD: the gradients of the windows over a row) column by column,
   then the columns of each window, for CHUNK columns at a time.

   The argument block: threads, planes, h, w, rows, columns; then for each axis: the padding before, and
   begin and end of the elements that the divisor counts; then the operands.  A plane is [h, w, LANES].

   T  type of an element
   W  type of the sums, float for BFLOAT16
   WINDOW_H, WINDOW_W, STRIDE_H, STRIDE_W  the window and its stride */
enum { NAME_CHUNK = 512 / BLOCK, NAME_SUMS = NAME_CHUNK + WINDOW_W };
#if BLOCK > 1
/* Explicit vector types: gcc unrolls such short loops before it vectorises. */
typedef W NAME_vector __attribute__((vector_size(BLOCK * sizeof(W))));
typedef T NAME_stored __attribute__((vector_size(BLOCK * sizeof(T))));
typedef uint32_t NAME_bits __attribute__((vector_size(BLOCK * sizeof(uint32_t))));
#else
typedef W NAME_vector;
#endif
MG_INLINE NAME_vector NAME_load(const T *from) {
#if BLOCK > 1
  NAME_stored x;
  memcpy(&x, from, sizeof x);
#if BFLOAT16
  return (NAME_vector)(__builtin_convertvector(x, NAME_bits) << 16);
#else
  return __builtin_convertvector(x, NAME_vector);
#endif
#elif BFLOAT16
  return mg_float_of_bits((uint32_t)*from << 16);
#else
  return *from;
#endif
}
MG_INLINE void NAME_store(T *to, NAME_vector x) {
#if BFLOAT16
  for (int k = 0; k < BLOCK; k++) to[k] = mg_bfloat16_of_float(((W *)&x)[k]);
#elif BLOCK > 1
  const NAME_stored y = __builtin_convertvector(x, NAME_stored);
  memcpy(to, &y, sizeof y);
#else
  *to = x;
#endif
}
/* Return the number of elements of window i along an axis that the divisor counts. */
MG_INLINE W NAME_counted(int64_t i, int64_t stride, int64_t window, const int64_t *axis) {
  const int64_t first = i * stride - axis[0], last = first + window;
  return (last < axis[2] ? last : axis[2]) - (first > axis[1] ? first : axis[1]);
}
/* Set *first to the first of `size` windows that contain position x; return the end of these windows. */
MG_INLINE int64_t NAME_containing(int64_t x, int64_t size, int64_t stride, int64_t window,
                                  int64_t *first) {
  *first = x < window ? 0 : (x - window) / stride + 1;
  return x / stride + 1 < size ? x / stride + 1 : size;
}
static void NAME_rows(const int64_t *a, char **slots, int64_t begin, int64_t end) {
  const int64_t h = a[2], w = a[3], rows = a[4], columns = a[5], top = a[6], left = a[9];
  const T *from = (const T *)(slots[a[12]] + a[13]);
  T *to = (T *)(slots[a[14]] + a[15]);
  NAME_vector sum[NAME_SUMS];
#if BACKWARD
  const int64_t chunk = NAME_CHUNK;
  W counted_w[NAME_SUMS];
  NAME_vector gradient[NAME_SUMS];
  for (int64_t c = 0; c < w; c += chunk) {
    const int64_t n = w - c < chunk ? w - c : chunk;
    int64_t j0, unused;
    NAME_containing(c + left, columns, STRIDE_W, WINDOW_W, &j0);
    const int64_t j1 = NAME_containing(c + n - 1 + left, columns, STRIDE_W, WINDOW_W, &unused);
    for (int64_t j = j0; j < j1; j++) counted_w[j - j0] = NAME_counted(j, STRIDE_W, WINDOW_W, a + 9);
    for (int64_t u = begin, previous = -1; u < end; u++) {
      int64_t i0;
      const int64_t plane = u / h, i1 = NAME_containing(u % h + top, rows, STRIDE_H, WINDOW_H, &i0);
      /* Copy the row above if the same windows contain it. */
      const int64_t windows = ((plane * rows + i0) << 20) + i1 - i0;
      if (windows == previous) {
        T *out = to + (u * w + c) * LANES;
        memcpy(out, out - w * LANES, n * LANES * sizeof(T));
        continue;
      }
      previous = windows;
      for (int64_t k = 0; k < LANES; k += BLOCK) {
        T *out = to + (u * w + c) * LANES + k;
        for (int64_t j = 0; j < j1 - j0; j++) gradient[j] = (NAME_vector){0};
        for (int64_t i = i0; i < i1; i++) {
          const T *dy = from + ((plane * rows + i) * columns + j0) * LANES + k;
          const W counted_h = NAME_counted(i, STRIDE_H, WINDOW_H, a + 6);
          for (int64_t j = 0; j < j1 - j0; j++)
            gradient[j] += NAME_load(dy + j * LANES) / (counted_h * counted_w[j]);
        }
        for (int64_t x = 0; x < n; x++) sum[x] = (NAME_vector){0};
        for (int64_t q = 0; q < WINDOW_W; q++) {
          /* Column q of window j is column j * STRIDE_W + shift of the chunk. */
          const int64_t shift = j0 * STRIDE_W - left - c + q;
          const int64_t first = shift < 0 ? (-shift + STRIDE_W - 1) / STRIDE_W : 0;
          int64_t last = n - shift > 0 ? (n - shift - 1) / STRIDE_W + 1 : 0;
          if (last > j1 - j0) last = j1 - j0;
          #pragma GCC ivdep
          for (int64_t j = first; j < last; j++) sum[j * STRIDE_W + shift] += gradient[j];
        }
        for (int64_t x = 0; x < n; x++) NAME_store(out + x * LANES, sum[x]);
      }
    }
  }
#else
  const int64_t chunk = NAME_CHUNK / STRIDE_W > 1 ? NAME_CHUNK / STRIDE_W : 1;
  W counted_w[NAME_CHUNK];
  for (int64_t c = 0; c < columns; c += chunk) {
    const int64_t n = columns - c < chunk ? columns - c : chunk;
    /* The windows cover `covered` columns, of which x0 to x1 are in the image. */
    const int64_t shift = c * STRIDE_W - left, covered = (n - 1) * STRIDE_W + WINDOW_W;
    const int64_t x0 = shift < 0 ? (-shift < covered ? -shift : covered) : 0;
    const int64_t x1 = w - shift < covered ? w - shift : covered;
    for (int64_t j = 0; j < n; j++) counted_w[j] = NAME_counted(c + j, STRIDE_W, WINDOW_W, a + 9);
    for (int64_t u = begin; u < end; u++) {
      const int64_t i = u % rows, row = i * STRIDE_H - top;
      const int64_t p0 = row < 0 ? -row : 0, p1 = h - row < WINDOW_H ? h - row : WINDOW_H;
      const W counted_h = NAME_counted(i, STRIDE_H, WINDOW_H, a + 6);
      for (int64_t k = 0; k < LANES; k += BLOCK) {
        const T *x = from + ((u / rows * h + row) * w + shift) * LANES + k;
        T *y = to + (u * columns + c) * LANES + k;
        for (int64_t j = 0; j < covered; j++) sum[j] = (NAME_vector){0};
        for (int64_t p = p0; p < p1; p++)
          for (int64_t j = x0; j < x1; j++) sum[j] += NAME_load(x + (p * w + j) * LANES);
        for (int64_t j = 0; j < n; j++) {
          NAME_vector total = sum[j * STRIDE_W];
          #pragma GCC unroll 16
          for (int q = 1; q < WINDOW_W; q++) total += sum[j * STRIDE_W + q];
          NAME_store(y + j * LANES, total / (counted_h * counted_w[j]));
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
    NAME_rows(a, slots, units * t / threads, units * (t + 1) / threads);
  return 0;
}
