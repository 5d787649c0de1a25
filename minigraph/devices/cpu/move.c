/* Copy arrays whose elements lie in another order, between borders.

   The argument block: threads, the parts that they do, pieces, whether to stream past the caches, the
   axis that is cut into parts; then of each piece its axes, of each axis its length, the input's and
   the output's stride, and the bytes of the output's border before and behind it, and the operands.  Axes are in the order of the output, but that with TILED
   the last two are those along which output and input are contiguous.

   T         type of an element
   BORDERS   whether there are some, of VALUE
   IN, OUT   strides along the last axis, in elements
   TILED     whether tiles are read, HIGH along the last axis but one and WIDE along the last, powers of
             two, and transposed in registers.  Where an axis ends, tiles overlap
   LOW, TOP  which elements of two vectors alternate: those of their lower, and upper, halves */
#if BORDERS
static inline char *NAME_fill(char *to, int64_t bytes) {
  for (int64_t j = 0; j < bytes; j += sizeof(T)) *(T *)(to + j) = VALUE;
  return to + bytes;
}
#else
#define NAME_fill(to, bytes) to
#endif
#if TILED
typedef T NAME_vector __attribute__((vector_size(WIDE * sizeof(T))));
#if defined(__clang__)
#define NAME_shuffle(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define NAME_shuffle(x, y, ...) __builtin_shuffle(x, y, (NAME_vector){__VA_ARGS__})
#endif
/* Each round rotates the bits of an element's place by one. */
MG_INLINE void NAME_tile(const char *from, int64_t in, char *to, int64_t out, int stream) {
  NAME_vector tile[HIGH], next[HIGH];
  #pragma GCC unroll 64
  for (int i = 0; i < HIGH; i++) memcpy(&tile[i], from + i * in, sizeof *tile);
  #pragma GCC unroll 8
  for (int round = 1; round < HIGH; round *= 2) {
    #pragma GCC unroll 64
    for (int i = 0; i < HIGH / 2; i++) {
      next[2 * i] = NAME_shuffle(tile[i], tile[i + HIGH / 2], LOW);
      next[2 * i + 1] = NAME_shuffle(tile[i], tile[i + HIGH / 2], TOP);
    }
    #pragma GCC unroll 64
    for (int i = 0; i < HIGH; i++) tile[i] = next[i];
  }
#if defined(__AVX__)
  if (stream) {
    #pragma GCC unroll 64
    for (int i = 0; i < WIDE; i++)
      #pragma GCC unroll 2
      for (uint64_t k = 0; k < sizeof *tile; k += MG_STREAM_BYTES)
        MG_STREAM_STORE((mg_aligned *)(to + i * out + k), (mg_aligned) * (mg_unaligned *)((char *)&tile[i] + k));
    return;
  }
#endif
  #pragma GCC unroll 64
  for (int i = 0; i < WIDE; i++) memcpy(to + i * out, (T *)tile + i * HIGH, HIGH * sizeof(T));
}
MG_INLINE void NAME_run(const int64_t *axis, const char *from, char *to, int stream) {
  const int64_t rows = axis[0], in = axis[1], columns = axis[5], out = axis[7];
  const int lines = HIGH == WIDE && WIDE * sizeof(T) % MG_STREAM_BYTES == 0 && rows % HIGH == 0;
  const int whole = stream && lines && !(((uintptr_t)to | out) % MG_STREAM_BYTES);
  /* Write where output's lines follow each other if they are the farther ones apart. */
  const int64_t inner = in < out ? rows : columns, outer = in < out ? columns : rows;
  const int64_t along = in < out ? HIGH : WIDE, across = in < out ? WIDE : HIGH;
  for (int64_t i = 0; i < outer; i += across)
    for (int64_t j = 0; j < inner; j += along) {
      const int64_t o = i + across <= outer ? i : outer - across;
      const int64_t n = j + along <= inner ? j : inner - along;
      const int64_t row = in < out ? n : o, column = in < out ? o : n;
      const char *source = from + row * in + column * sizeof(T);
      NAME_tile(source, in, to + column * out + row * sizeof(T), out, whole);
    }
}
#else
MG_INLINE void NAME_run(const int64_t *axis, const char *from, char *to, int stream) {
  const int64_t n = axis[0];
  to = NAME_fill(to, axis[3]);
#if IN == 1 && OUT == 1
  if (stream) mg_stream_copy(to, from, n * sizeof(T));
  else mg_copy_row(to, from, n * sizeof(T));
#else
  const int64_t in = axis[1] / (int64_t)sizeof(T), out = axis[2] / (int64_t)sizeof(T);
  (void)in, (void)out, (void)stream;
  #pragma GCC ivdep
  for (int64_t j = 0; j < n; j++) ((T *)to)[j * (OUT)] = ((const T *)from)[j * (IN)];
#endif
  NAME_fill(to + n * axis[2], axis[4]);
}
#endif
static void NAME_axes(const int64_t *axis, int64_t left, const char *from, char *to, int stream) {
  const int64_t n = axis[0], in = axis[1], out = axis[2];
  to = NAME_fill(to, axis[3]);
  if (left == 2 + TILED)
    for (int64_t i = 0; i < n; i++) NAME_run(axis + 5, from + i * in, to + i * out, stream);
  else
    for (int64_t i = 0; i < n; i++) NAME_axes(axis + 5, left - 1, from + i * in, to + i * out, stream);
  NAME_fill(to + n * out, axis[4]);
}
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], parts = a[1];
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t w = 0; w < parts; w++) {
    const int64_t *piece = a + 5;
    for (int64_t p = 0; p < a[2]; p++) {
      const int64_t axes = piece[0], *share = piece + 1 + 5 * a[4], *last = piece + 1 + 5 * axes;
      const int64_t n = share[0], begin = n * w / parts, end = n * (w + 1) / parts;
      int64_t mine[5 * MG_MAX_RANK], *part = mine + 5 * a[4];
      memcpy(mine, piece + 1, 5 * axes * sizeof *mine);
      part[0] = end - begin;
      if (end < n) part[4] = 0;
      char *to = slots[last[2]] + last[3] + begin * share[2];
      if (begin) to += part[3], part[3] = 0;
      NAME_axes(mine, axes, slots[last[0]] + last[1] + begin * share[1], to, a[3]);
      piece = last + 4;
    }
    if (a[3]) mg_fence();
  }
  return 0;
}
