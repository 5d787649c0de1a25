/* Copy arrays to another order of axes, with borders around them.

   The argument block: threads, parts of the work, copies, whether to use streaming stores, the axis
   that is split into parts; then for each copy the number of its axes, for each axis its length, the
   strides of input and output, and the bytes of the output's border before and after it; then the
   operands.  Axes are in the order of the output; but with TILED the last two are those along which
   output and input, in this order, are contiguous.

   T           type of an element
   BORDERS     whether there are borders, of VALUE
   STRIDE_IN   stride of the input along the last axis, in elements; STRIDE_OUT that of the output
   TILED       whether to transpose tiles in registers: TILE_ROWS along the last axis but one,
               TILE_COLUMNS along the last, powers of two.  At the end of an axis tiles overlap
   INTERLEAVE_LOW, INTERLEAVE_HIGH  shuffles that interleave the lower, or upper, halves of two vectors */
#if BORDERS
static inline char *NAME_fill(char *to, int64_t bytes) {
  for (int64_t j = 0; j < bytes; j += sizeof(T)) *(T *)(to + j) = VALUE;
  return to + bytes;
}
#else
#define NAME_fill(to, bytes) to
#endif
#if TILED
typedef T NAME_vector __attribute__((vector_size(TILE_COLUMNS * sizeof(T))));
#if defined(__clang__)
#define NAME_shuffle(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define NAME_shuffle(x, y, ...) __builtin_shuffle(x, y, (NAME_vector){__VA_ARGS__})
#endif
/* Transpose a tile in registers.  Each round of interleaving rotates the bits of an element's index by
   one. */
MG_INLINE void NAME_tile(const char *from, int64_t stride_in, char *to, int64_t stride_out,
                         int stream) {
  NAME_vector tile[TILE_ROWS], next[TILE_ROWS];
  #pragma GCC unroll 64
  for (int i = 0; i < TILE_ROWS; i++) memcpy(&tile[i], from + i * stride_in, sizeof *tile);
  #pragma GCC unroll 8
  for (int round = 1; round < TILE_ROWS; round *= 2) {
    #pragma GCC unroll 64
    for (int i = 0; i < TILE_ROWS / 2; i++) {
      next[2 * i] = NAME_shuffle(tile[i], tile[i + TILE_ROWS / 2], INTERLEAVE_LOW);
      next[2 * i + 1] = NAME_shuffle(tile[i], tile[i + TILE_ROWS / 2], INTERLEAVE_HIGH);
    }
    #pragma GCC unroll 64
    for (int i = 0; i < TILE_ROWS; i++) tile[i] = next[i];
  }
#if defined(__AVX__)
  if (stream) {
    #pragma GCC unroll 64
    for (int i = 0; i < TILE_COLUMNS; i++)
      #pragma GCC unroll 2
      for (uint64_t k = 0; k < sizeof *tile; k += MG_STREAM_BYTES)
        MG_STREAM_STORE((mg_aligned *)(to + i * stride_out + k),
                        (mg_aligned) * (mg_unaligned *)((char *)&tile[i] + k));
    return;
  }
#endif
  #pragma GCC unroll 64
  for (int i = 0; i < TILE_COLUMNS; i++)
    memcpy(to + i * stride_out, (T *)tile + i * TILE_ROWS, TILE_ROWS * sizeof(T));
}
MG_INLINE void NAME_innermost(const int64_t *axis, const char *from, char *to, int stream) {
  const int64_t rows = axis[0], stride_in = axis[1], columns = axis[5], stride_out = axis[7];
  const int whole_lines = TILE_ROWS == TILE_COLUMNS &&
                          TILE_COLUMNS * sizeof(T) % MG_STREAM_BYTES == 0 && rows % TILE_ROWS == 0;
  const int stream_tiles = stream && whole_lines && !(((uintptr_t)to | stride_out) % MG_STREAM_BYTES);
  /* The inner loop runs along the output's lines if the output has the larger stride. */
  const int64_t inner = stride_in < stride_out ? rows : columns;
  const int64_t outer = stride_in < stride_out ? columns : rows;
  const int64_t inner_step = stride_in < stride_out ? TILE_ROWS : TILE_COLUMNS;
  const int64_t outer_step = stride_in < stride_out ? TILE_COLUMNS : TILE_ROWS;
  for (int64_t i = 0; i < outer; i += outer_step)
    for (int64_t j = 0; j < inner; j += inner_step) {
      const int64_t o = i + outer_step <= outer ? i : outer - outer_step;
      const int64_t n = j + inner_step <= inner ? j : inner - inner_step;
      const int64_t row = stride_in < stride_out ? n : o, column = stride_in < stride_out ? o : n;
      const char *source = from + row * stride_in + column * sizeof(T);
      NAME_tile(source, stride_in, to + column * stride_out + row * sizeof(T), stride_out, stream_tiles);
    }
}
#else
MG_INLINE void NAME_innermost(const int64_t *axis, const char *from, char *to, int stream) {
  const int64_t n = axis[0];
  to = NAME_fill(to, axis[3]);
#if STRIDE_IN == 1 && STRIDE_OUT == 1
  if (stream) mg_stream_copy(to, from, n * sizeof(T));
  else mg_copy_row(to, from, n * sizeof(T));
#else
  const int64_t stride_in = axis[1] / (int64_t)sizeof(T), stride_out = axis[2] / (int64_t)sizeof(T);
  (void)stride_in, (void)stride_out, (void)stream;
  #pragma GCC ivdep
  for (int64_t j = 0; j < n; j++) ((T *)to)[j * (STRIDE_OUT)] = ((const T *)from)[j * (STRIDE_IN)];
#endif
  NAME_fill(to + n * axis[2], axis[4]);
}
#endif
static void NAME_axes(const int64_t *axis, int64_t axes_left, const char *from, char *to, int stream) {
  const int64_t n = axis[0], stride_in = axis[1], stride_out = axis[2];
  to = NAME_fill(to, axis[3]);
  if (axes_left == 2 + TILED)
    for (int64_t i = 0; i < n; i++) {
      /* The processor does not foresee lines of the output that are apart. */
      if (!stream) __builtin_prefetch(to + (i + 16) * stride_out, 1);
      NAME_innermost(axis + 5, from + i * stride_in, to + i * stride_out, stream);
    }
  else
    for (int64_t i = 0; i < n; i++)
      NAME_axes(axis + 5, axes_left - 1, from + i * stride_in, to + i * stride_out, stream);
  NAME_fill(to + n * stride_out, axis[4]);
}
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], parts = a[1];
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t part_index = 0; part_index < parts; part_index++) {
    const int64_t *copy = a + 5;
    for (int64_t p = 0; p < a[2]; p++) {
      const int64_t axes = copy[0], *split_axis = copy + 1 + 5 * a[4], *operands = copy + 1 + 5 * axes;
      const int64_t n = split_axis[0], begin = n * part_index / parts, end = n * (part_index + 1) / parts;
      int64_t axes_of_part[5 * MG_MAX_RANK], *part_axis = axes_of_part + 5 * a[4];
      memcpy(axes_of_part, copy + 1, 5 * axes * sizeof *axes_of_part);
      part_axis[0] = end - begin;
      if (end < n) part_axis[4] = 0;
      char *to = slots[operands[2]] + operands[3] + begin * split_axis[2];
      if (begin) to += part_axis[3], part_axis[3] = 0;
      NAME_axes(axes_of_part, axes, slots[operands[0]] + operands[1] + begin * split_axis[1], to, a[3]);
      copy = operands + 4;
    }
    if (a[3]) mg_fence();
  }
  return 0;
}
