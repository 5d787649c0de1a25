/* Float32 products on AMX's tiles, of numbers that are split into PARTS parts of bfloat16.

   A number is the sum of its parts: bits 1 to 8, 9 to 16, and, of three parts, 17 to 24.  A tile
   instruction multiplies LINES rows by LINES columns and adds up DEPTH products for each of them, in
   float32.  Products of parts p and q with p + q < PARTS are added, the smallest first.

   A packed tile has LINES words for each of its LINES rows; a word is a pair of bfloat16 numbers,
   of sums LINES apart.  A row of a left tile is a row of the product; a column of a right tile is a
   column of the product.

   PARTS       2 or 3
   LINES       rows of a tile, and words of a row; DEPTH sums of a tile, TILE_BYTES its bytes
   BLOCK       rows and columns of a block of results, which has two tiles on each side
   SIGN        the sign bit, and LARGE the bits of the smallest number that rounds to infinity */
typedef float NAME_floats __attribute__((vector_size(4 * LINES), may_alias));
typedef uint32_t NAME_words __attribute__((vector_size(4 * LINES), may_alias));
/* Return words whose sign bits are set where a number rounds to infinity, or is NaN. */
MG_INLINE NAME_words NAME_overflows(NAME_words x) { return (x & ~SIGN) + (SIGN - LARGE); }
MG_INLINE int NAME_any_overflow(NAME_words x) {
  uint32_t any = 0;
  for (int l = 0; l < LINES; l++) any |= x[l];
  return any >= SIGN;
}
/* Return the next part of numbers, in the upper halves of words; leave the remainders in `x`.

   With `keep_special`, a number that rounds to infinity is truncated, and infinity and NaN stay. */
MG_INLINE NAME_words NAME_part(NAME_words *x, int keep_special) {
  const NAME_words bits = *x;
  NAME_words part = (bits + 0x8000) & 0xffff0000u;
  if (keep_special) {
    const NAME_words size = bits & ~SIGN, large = (NAME_words)(size >= LARGE);
    const NAME_words nan = (NAME_words)(size > 0x7f800000u) & 0x00400000u;
    part = (large & ((bits & 0xffff0000u) | nan)) | (~large & part);
    *x = (NAME_words)((NAME_floats)bits - (NAME_floats)part) & ~(NAME_words)(size >= 0x7f800000u);
  } else *x = (NAME_words)((NAME_floats)bits - (NAME_floats)part);
  return part;
}
#if defined(__clang__)
#define NAME_shuffle(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define NAME_shuffle(x, y, ...) __builtin_shuffle(x, y, (NAME_words){__VA_ARGS__})
#endif
/* Transpose 16 x 16 words in four rounds of interleaving. */
MG_NOINLINE void NAME_transpose(NAME_words *tile) {
  NAME_words now[LINES], next[LINES];
  #pragma GCC unroll 16
  for (int i = 0; i < LINES; i++) now[i] = tile[i];
  #pragma GCC unroll 4
  for (int round = 0; round < 4; round++) {
    #pragma GCC unroll 8
    for (int i = 0; i < LINES / 2; i++) {
      next[2 * i] = NAME_shuffle(now[i], now[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next[2 * i + 1] = NAME_shuffle(now[i], now[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    #pragma GCC unroll 16
    for (int i = 0; i < LINES; i++) now[i] = next[i];
  }
  #pragma GCC unroll 16
  for (int i = 0; i < LINES; i++) tile[i] = now[i];
}
#if defined(__AMX_BF16__) || defined(__AMXBF16__) /* the second one in older versions of clang */
#define TILES
#define ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define LOAD(t, from) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"(4L * LINES) : "memory")
#define MULTIPLY(z, x, y) __asm__ volatile("tdpbf16ps %%tmm" #y ", %%tmm" #x ", %%tmm" #z ::)
#define STORE(t, to) \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"(4L * BLOCK) : "memory")
static void NAME_load_config(void) {
  struct {
    uint8_t palette, start, none[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } shape = {.palette = 1};
  for (int t = 0; t < 8; t++) shape.bytes[t] = 4 * LINES, shape.rows[t] = LINES;
  __asm__ volatile("ldtilecfg %0" ::"m"(shape));
}
#define NAME_release_tiles() __asm__ volatile("tilerelease" ::)
#else
typedef uint32_t NAME_tile[LINES][LINES];
#define TILES NAME_tile tiles[8];
#define ZERO(t) memset(tiles[t], 0, TILE_BYTES)
#define LOAD(t, from) memcpy(tiles[t], from, TILE_BYTES)
#define STORE(t, to) \
  for (int r = 0; r < LINES; r++) memcpy((to) + r * BLOCK, tiles[t][r], 4 * LINES)
#define MULTIPLY(z, x, y) NAME_emulate(tiles[z], tiles[x], tiles[y])
static void NAME_emulate(NAME_tile z, NAME_tile x, NAME_tile y) {
  for (int i = 0; i < LINES; i++)
    for (int k = 0; k < LINES; k++) {
      const float low = mg_float_of_bits(x[i][k] << 16), high = mg_float_of_bits(x[i][k] & 0xffff0000u);
      for (int j = 0; j < LINES; j++) {
        const float sum = mg_float_of_bits(z[i][j]) + low * mg_float_of_bits(y[k][j] << 16);
        z[i][j] = mg_bits_of_float(sum + high * mg_float_of_bits(y[k][j] & 0xffff0000u));
      }
    }
}
#define NAME_load_config()
#define NAME_release_tiles()
#endif
#define MULTIPLY_ALL \
  MULTIPLY(0, 4, 6);  \
  MULTIPLY(1, 4, 7);  \
  MULTIPLY(2, 5, 6);  \
  MULTIPLY(3, 5, 7)
/* The packed lines of a block: at step s, its tiles begin at `tiles` + at[s] bytes.

   half  bytes from the first tile to the second one
   part  bytes from one part to the next */
typedef struct {
  const char *tiles;
  const int64_t *at;
  int64_t half, part;
} NAME_packed;
#define LOAD_PAIR(first, second, lines, place, p) \
  LOAD(first, (place) + (p) * (lines)->part);     \
  LOAD(second, (place) + (p) * (lines)->part + (lines)->half)
#define LOAD_ROWS(p) LOAD_PAIR(4, 5, x, left, p)
#define LOAD_COLUMNS(p) LOAD_PAIR(6, 7, y, right, p)
/* Compute a block of results, sums[BLOCK][BLOCK]. */
static void NAME_multiply_block(int64_t steps, const NAME_packed *x, const NAME_packed *y, float *sums) {
  TILES
  ZERO(0);
  ZERO(1);
  ZERO(2);
  ZERO(3);
  for (int64_t s = 0; s < steps; s++) {
    const char *const left = x->tiles + x->at[s], *const right = y->tiles + y->at[s];
#if PARTS == 3
    LOAD_ROWS(2);
    LOAD_COLUMNS(0);
    MULTIPLY_ALL;
    LOAD_ROWS(1);
    MULTIPLY_ALL;
    LOAD_COLUMNS(1);
    MULTIPLY_ALL;
    LOAD_ROWS(0);
    MULTIPLY_ALL;
    LOAD_COLUMNS(2);
    MULTIPLY_ALL;
    LOAD_COLUMNS(0);
    MULTIPLY_ALL;
#else
    LOAD_ROWS(1);
    LOAD_COLUMNS(0);
    MULTIPLY_ALL;
    LOAD_ROWS(0);
    MULTIPLY_ALL;
    LOAD_COLUMNS(1);
    MULTIPLY_ALL;
#endif
  }
  STORE(0, sums);
  STORE(1, sums + LINES);
  STORE(2, sums + LINES * BLOCK);
  STORE(3, sums + LINES * BLOCK + LINES);
}
#undef TILES
#undef ZERO
#undef LOAD
#undef MULTIPLY
#undef STORE
#undef MULTIPLY_ALL
#undef LOAD_PAIR
#undef LOAD_ROWS
#undef LOAD_COLUMNS
