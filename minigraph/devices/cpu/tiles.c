/* Products of floats, each in PARTS parts of bfloat16: z[i, j] = sum over k of x[i, k] y[k, j].

   A number is the sum of its parts: bits 1 to 8, 9 to 16, and, of three parts, 17 to 24.  Products of
   parts are summed up in float32 by AMX's tiles, of 16 x 16 sums: those of parts p and q with
   p + q < PARTS, smallest first.

   Lines are the rows of x, and the columns of y.  32 sums of 16 lines make a tile of each part, whose
   words are pairs of sums 16 apart: a row of a tile of x is a line, a column of a tile of y.  Blocks are
   of two tiles.

   Numbers that are infinite, NaN, or round to infinity would spread to sums that they do not belong to.
   A block of such lines is summed up one number at a time, without the borders around images: their last
   parts are BORDER, a denormal, which tiles take for 0.

   How the work is divided stands in tiles_matrices.c, for any lines, and in tiles_images.c and
   tiles_weights.c for convolutions of stride 1, whose images are parted once for all taps of a window.

   PARTS  2 or 3
   PANEL  steps of DEEP sums that are added up in registers, at most
   SIDE   lines of a tile, DEEP its sums, TILE its bytes
   BLOCK  lines of a block, and STEP the bytes of its tiles for DEEP sums
   AHEAD  steps of which numbers are brought to the cache before they are read
   SIGN   of a number, and LARGE the first one that rounds to infinity */
typedef float NAME_vec __attribute__((vector_size(4 * SIDE), may_alias));
typedef uint32_t NAME_words __attribute__((vector_size(4 * SIDE), may_alias));
typedef struct { /* of lines, or of sums, by four axes: how far apart in memory, and in an image */
  int64_t units, extent[4], step[4], down[4], across[4];
} NAME_axes;
typedef struct { /* an image has `high` rows of `wide` pixels, and zeros around; a matrix is one pixel */
  int64_t slot, offset, first, row, column, high, wide;
  int64_t vertical; /* whether vectors are of lines, `lane` elements apart; otherwise of sums */
  int64_t lane;
  NAME_axes lines, sums; /* vectors' in units of SIDE */
} NAME_operand;
typedef struct { /* a line or a vector of lines, or such sums */
  int64_t at;
  int32_t row, column, lanes;
} NAME_place;
/* Where lines or sums are, from `first` on; those after the last are in no image. */
static void NAME_find(const NAME_axes *axes, int64_t length, int vectors, int64_t first,
                      int64_t count, NAME_place *to) {
  int64_t index[4], rest = first;
  for (int d = 3; d >= 0; d--) index[d] = rest % axes->extent[d], rest /= axes->extent[d];
  for (int64_t n = 0; n < count; n++, to++) {
    const int64_t left = vectors ? length - (first + n) * SIDE : SIDE;
    if (n && index[3])
      *to = (NAME_place){to[-1].at + axes->step[3], to[-1].row + axes->down[3],
                         to[-1].column + axes->across[3]};
    else {
      *to = (NAME_place){0};
      for (int d = 0; d < 4; d++) {
        to->at += index[d] * axes->step[d];
        to->row += index[d] * axes->down[d];
        to->column += index[d] * axes->across[d];
      }
    }
    to->lanes = left < SIDE ? left : SIDE;
    if (first + n >= axes->units) to->row = INT32_MIN, to->lanes = 0;
    if (++index[3] == axes->extent[3])
      for (int d = 3; d >= 0 && index[d] == axes->extent[d]; d--) index[d] = 0, d ? index[d - 1]++ : 0;
  }
}
/* Which rows and columns some lines or sums are at, and how many lanes the shortest vector has. */
typedef struct {
  int64_t top, bottom, left, right, lanes;
} NAME_span;
static void NAME_measure(const NAME_place *places, int count, NAME_span *span) {
  *span = (NAME_span){places->row, places->row, places->column, places->column, places->lanes};
  for (const NAME_place *p = places + 1; p < places + count; p++) {
    if (p->row < span->top) span->top = p->row;
    if (p->row > span->bottom) span->bottom = p->row;
    if (p->column < span->left) span->left = p->column;
    if (p->column > span->right) span->right = p->column;
    if (p->lanes < span->lanes) span->lanes = p->lanes;
  }
}
/* Whether all vectors of some lines and sums are whole, and inside of an image. */
static int NAME_is_inside(const NAME_operand *o, const NAME_span *lines, const NAME_span *sums) {
  return o->lane == 1 && lines->lanes == SIDE && sums->lanes == SIDE &&
         o->row + lines->top + sums->top >= 0 && o->row + lines->bottom + sums->bottom < o->high &&
         o->column + lines->left + sums->left >= 0 &&
         o->column + lines->right + sums->right < o->wide;
}
#define AT(l) mg_bits(from[(l) * lane])
MG_INLINE NAME_words NAME_gather(const float *from, int64_t lane) {
  return (NAME_words){AT(0), AT(1), AT(2),  AT(3),  AT(4),  AT(5),  AT(6),  AT(7),
                      AT(8), AT(9), AT(10), AT(11), AT(12), AT(13), AT(14), AT(15)};
}
#undef AT
/* A vector that may reach beyond an image, or the last line or sum. */
static NAME_words NAME_load(const NAME_operand *o, const float *x, const NAME_place *line,
                            const NAME_place *sum, uint32_t *border) {
  NAME_words v = {0};
  const int64_t row = o->row + line->row + sum->row, column = o->column + line->column + sum->column;
  *border = (uint64_t)row >= (uint64_t)o->high || (uint64_t)column >= (uint64_t)o->wide ? BORDER : 0;
  if (*border) return v;
  const int64_t lanes = line->lanes < sum->lanes ? line->lanes : sum->lanes;
  const float *from = x + line->at + sum->at;
  if (o->lane == 1 && lanes == SIDE) memcpy(&v, from, sizeof v);
  else if (lanes == SIDE) v = NAME_gather(from, o->lane);
  else
    for (int64_t l = 0; l < lanes; l++) v[l] = mg_bits(from[l * o->lane]);
  return v;
}
/* Words that have signs where numbers are LARGE or larger. */
MG_INLINE NAME_words NAME_signs(NAME_words x) { return (x & ~SIGN) + (SIGN - LARGE); }
MG_INLINE int NAME_has_sign(NAME_words x) {
  uint32_t any = 0;
  for (int l = 0; l < SIDE; l++) any |= x[l];
  return any >= SIGN;
}
/* The largest part of a number, in the upper half of a word; what is left of the number stays. */
MG_INLINE NAME_words NAME_part(NAME_words *x, int careful) {
  const NAME_words bits = *x;
  NAME_words part = (bits + 0x8000) & 0xffff0000u;
  if (careful) {
    const NAME_words size = bits & ~SIGN, large = (NAME_words)(size >= LARGE);
    const NAME_words nan = (NAME_words)(size > 0x7f800000u) & 0x00400000u;
    part = (large & ((bits & 0xffff0000u) | nan)) | (~large & part);
    *x = (NAME_words)((NAME_vec)bits - (NAME_vec)part) & ~(NAME_words)(size >= 0x7f800000u);
  } else *x = (NAME_words)((NAME_vec)bits - (NAME_vec)part);
  return part;
}
#if defined(__clang__)
#define NAME_shuffle(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define NAME_shuffle(x, y, ...) __builtin_shuffle(x, y, (NAME_words){__VA_ARGS__})
#endif
/* Each round rotates the bits of a word's place by one. */
MG_SHARED void NAME_transpose(NAME_words *tile) {
  NAME_words now[SIDE], next[SIDE];
  #pragma GCC unroll 16
  for (int i = 0; i < SIDE; i++) now[i] = tile[i];
  #pragma GCC unroll 4
  for (int round = 0; round < 4; round++) {
    #pragma GCC unroll 8
    for (int i = 0; i < SIDE / 2; i++) {
      next[2 * i] = NAME_shuffle(now[i], now[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next[2 * i + 1] = NAME_shuffle(now[i], now[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    #pragma GCC unroll 16
    for (int i = 0; i < SIDE; i++) now[i] = next[i];
  }
  #pragma GCC unroll 16
  for (int i = 0; i < SIDE; i++) tile[i] = now[i];
}
/* Bring 16 lines, of 32 sums, to a tile of each part; return whether a number is too large for that. */
MG_INLINE int NAME_pack(const NAME_operand *o, const float *x, const NAME_place *lines,
                        const NAME_place *sums, int inside, int careful, NAME_words *to) {
  NAME_words large = {0};
  const int64_t vertical = o->vertical, next = vertical ? SIDE : 1, ahead = AHEAD * 2 * next;
  for (int r = 0; r < SIDE; r++, lines += !vertical, sums += vertical, to++) {
    NAME_words v[2];
    uint32_t border[2] = {0, 0};
    #pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      const NAME_place *sum = sums + h * next;
      if (inside) memcpy(&v[h], x + lines->at + sum->at, sizeof *v);
      else v[h] = NAME_load(o, x, lines, sum, &border[h]);
      __builtin_prefetch(x + lines->at + sum[ahead].at);
      large |= NAME_signs(v[h]);
    }
    #pragma GCC unroll 4
    for (int p = 0; p < PARTS; p++) {
      const NAME_words low = NAME_part(&v[0], careful), high = NAME_part(&v[1], careful);
      const uint32_t borders = p == PARTS - 1 ? border[1] << 16 | border[0] : 0;
      to[p * 2 * TILE / sizeof *to] = high | low >> 16 | borders;
    }
  }
  return NAME_has_sign(large);
}
/* Bring a block of lines to tiles; `turned` says whether vectors are columns of a tile. */
static void NAME_block(const NAME_operand *o, char **slots, int turned, const NAME_place *lines,
                       const NAME_place *sums, const NAME_span *spans, int64_t steps, char *to,
                       char *special) {
  const float *x = (const float *)(slots[o->slot] + o->offset) + o->first;
  const int64_t tall = o->vertical ? 1 : SIDE, deep = o->vertical ? DEEP : 2;
  NAME_span across[2];
  for (int half = 0; half < 2; half++) NAME_measure(lines + half * tall, tall, across + half);
  for (int64_t s = 0; s < steps; s++, sums += deep, spans++, special++) {
    *special = 0;
    for (int half = 0; half < 2; half++) {
      const NAME_place *line = lines + half * tall;
      NAME_words *tile = (NAME_words *)(to + s * STEP + half * TILE);
      const int large = NAME_is_inside(o, across + half, spans)
                            ? NAME_pack(o, x, line, sums, 1, 0, tile)
                            : NAME_pack(o, x, line, sums, 0, 0, tile);
      if (large) *special = NAME_pack(o, x, line, sums, 0, 1, tile);
      for (int p = 0; p < PARTS && turned; p++) NAME_transpose(tile + p * 2 * TILE / sizeof *tile);
    }
  }
}
#if defined(__AMX_BF16__) || defined(__AMXBF16__) /* as older versions of clang call it */
#define TILES
#define ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define LOAD(t, from) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"(4L * SIDE) : "memory")
#define MULTIPLY(z, x, y) __asm__ volatile("tdpbf16ps %%tmm" #y ", %%tmm" #x ", %%tmm" #z ::)
#define STORE(t, to) \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"(4L * BLOCK) : "memory")
static void NAME_begin(void) {
  struct {
    uint8_t palette, start, none[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } shape = {.palette = 1};
  for (int t = 0; t < 8; t++) shape.bytes[t] = 4 * SIDE, shape.rows[t] = SIDE;
  __asm__ volatile("ldtilecfg %0" ::"m"(shape));
}
#define NAME_end() __asm__ volatile("tilerelease" ::)
#else
typedef uint32_t NAME_tile[SIDE][SIDE];
#define TILES NAME_tile tiles[8];
#define ZERO(t) memset(tiles[t], 0, TILE)
#define LOAD(t, from) memcpy(tiles[t], from, TILE)
#define MULTIPLY(z, x, y) NAME_multiply(tiles[z], tiles[x], tiles[y])
#define STORE(t, to) \
  for (int r = 0; r < SIDE; r++) memcpy((to) + r * BLOCK, tiles[t][r], 4 * SIDE)
static void NAME_multiply(NAME_tile z, NAME_tile x, NAME_tile y) {
  for (int i = 0; i < SIDE; i++)
    for (int k = 0; k < SIDE; k++) {
      const float low = mg_number(x[i][k] << 16), high = mg_number(x[i][k] & 0xffff0000u);
      for (int j = 0; j < SIDE; j++) {
        const float sum = mg_number(z[i][j]) + low * mg_number(y[k][j] << 16);
        z[i][j] = mg_bits(sum + high * mg_number(y[k][j] & 0xffff0000u));
      }
    }
}
#define NAME_begin()
#define NAME_end()
#endif
#define MULTIPLY_ALL \
  MULTIPLY(0, 4, 6);  \
  MULTIPLY(1, 4, 7);  \
  MULTIPLY(2, 5, 6);  \
  MULTIPLY(3, 5, 7)
typedef struct { /* a block's tiles at each step, and how far on its second one and the next part are */
  const char *tiles;
  const int64_t *at;
  int64_t half, part;
} NAME_tiles;
#define LOAD_ROWS(p)            \
  LOAD(4, left + (p) * x->part); \
  LOAD(5, left + (p) * x->part + x->half)
#define LOAD_COLUMNS(p)          \
  LOAD(6, right + (p) * y->part); \
  LOAD(7, right + (p) * y->part + y->half)
/* A block of sums. */
static void NAME_products(int64_t steps, const NAME_tiles *x, const NAME_tiles *y, float *sums) {
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
  STORE(1, sums + SIDE);
  STORE(2, sums + SIDE * BLOCK);
  STORE(3, sums + SIDE * BLOCK + SIDE);
}
#undef TILES
#undef ZERO
#undef LOAD
#undef MULTIPLY
#undef STORE
#undef MULTIPLY_ALL
#undef LOAD_ROWS
#undef LOAD_COLUMNS
/* The number of a line and sum, whose parts lie in one half of a word each; 0 where it is a border. */
MG_INLINE int NAME_whole(const NAME_tiles *x, int64_t step, int line, int sum, int across, double *number) {
  const char *tile = x->tiles + x->at[step] + line / SIDE * x->half;
  const int64_t row = across ? line % SIDE : sum % SIDE, word = across ? sum % SIDE : line % SIDE;
  uint32_t bits = 0;
  *number = 0;
  for (int p = 0; p < PARTS; p++) {
    memcpy(&bits, tile + p * x->part + row * sizeof(NAME_words) + word * sizeof bits, sizeof bits);
    bits = sum < SIDE ? bits << 16 : bits & 0xffff0000u;
    *number += mg_number(bits);
  }
  return bits != BORDER << 16;
}
/* The same, of any numbers. */
static void NAME_careful(int64_t steps, const NAME_tiles *x, const NAME_tiles *y, float *sums) {
  memset(sums, 0, BLOCK * BLOCK * sizeof *sums);
  for (int64_t s = 0; s < steps; s++)
    for (int k = 0; k < DEEP; k++) {
      double row[BLOCK], v; /* parts of the largest float may add up to more than it */
      int inside[BLOCK];
      for (int j = 0; j < BLOCK; j++) inside[j] = NAME_whole(y, s, j, k, 0, &row[j]);
      for (int i = 0; i < BLOCK; i++)
        if (NAME_whole(x, s, i, k, 1, &v))
          for (int j = 0; j < BLOCK; j++) sums[i * BLOCK + j] += inside[j] ? (float)(v * row[j]) : 0;
    }
}
/* Write a block of the result: some rows, and the columns of block j. */
static void NAME_write(const NAME_operand *o, char **slots, const NAME_place *rows, int64_t columns,
                       int64_t j, const int64_t *bias, const float *sums) {
  float *z = (float *)(slots[o->slot] + o->offset) + o->first;
  const int64_t left = columns - j * BLOCK;
  NAME_place units[2];
  NAME_vec add[2] = {{0}, {0}};
  NAME_find(&o->sums, columns, 1, 2 * j, 2, units);
  if (bias[0] >= 0)
    memcpy(add, slots[bias[0]] + bias[1] + j * BLOCK * sizeof(float),
           (left < BLOCK ? left : BLOCK) * sizeof(float));
  for (int i = 0; i < BLOCK; i++)
    for (int u = 0; u < 2 && rows[i].lanes; u++) {
      float *to = z + rows[i].at + units[u].at;
      const NAME_vec v = *(const NAME_vec *)(sums + i * BLOCK + u * SIDE) + add[u];
      if (o->lane == 1 && units[u].lanes == SIDE) memcpy(to, &v, sizeof v);
      else
        for (int64_t l = 0; l < units[u].lanes; l++) to[l * o->lane] = v[l];
    }
}
/* Bring `count` steps of all of an operand's lines to tiles, together with the other threads. */
MG_SHARED void NAME_gather_lines(const NAME_operand *o, char **slots, int are_rows, int64_t length,
                                 int64_t sums, int64_t begun, int64_t count, int64_t panel, char *to,
                                 char *special) {
  NAME_place across[(PANEL + AHEAD) * DEEP], lines[BLOCK];
  NAME_span spans[PANEL];
  const int64_t deep = o->vertical ? DEEP : 2, tall = o->vertical ? 2 : BLOCK;
  int64_t found = -1;
  NAME_find(&o->sums, sums, !o->vertical, begun * deep, (count + AHEAD) * deep, across);
  for (int64_t s = 0; s < count; s++) NAME_measure(across + s * deep, deep, spans + s);
  #pragma omp for schedule(static)
  for (int64_t task = 0; task < (length + BLOCK - 1) / BLOCK * count; task++) {
    const int64_t j = task / count, s = task % count;
    if (j != found) NAME_find(&o->lines, length, o->vertical, j * tall, tall, lines);
    found = j;
    NAME_block(o, slots, o->vertical == are_rows, lines, across + s * deep, spans + s, 1,
               to + (j * panel + s) * STEP, special + j * panel + s);
  }
}
