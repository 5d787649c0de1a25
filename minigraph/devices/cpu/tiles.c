/* Products of matrices and convolutions by amx.c: z[i, j] = sum over k of x[i, k] y[k, j].

   A line is a row of x, or a column of y; `sums` are the values of k.  A number that is infinite, NaN,
   or rounds to infinity makes a block special: it is computed in scalar code, which leaves out the
   zeros around images, as 0 times infinity is NaN.  These zeros are marked: their last part is BORDER,
   a denormal, which tile instructions flush to 0.

   tiles_matrices.c divides the work for any lines; tiles_images.c and tiles_weights.c do it for
   convolutions of stride 1, whose images are split once for all taps of a window.

   PANEL  steps of DEPTH sums that are accumulated in registers, at most
   STEP   bytes of a block's tiles for DEPTH sums
   AHEAD  prefetch distance in steps */
typedef struct { /* lines or sums along four axes: their distances in memory, and in an image */
  int64_t units, extent[4], step[4], down[4], across[4];
} NAME_axes;
typedef struct { /* images of `height` x `width` pixels with zeros around; a matrix is one pixel */
  int64_t slot, offset, first, row, column, height, width;
  int64_t vertical; /* whether vectors run along lines, not sums; lanes are `lane` elements apart */
  int64_t lane;
  NAME_axes lines, sums; /* of the vectorised ones, a unit has LINES */
} NAME_operand;
typedef struct { /* of a unit of lines or sums: offset in memory, pixel, and valid lanes */
  int64_t at;
  int32_t row, column, lanes;
} NAME_position;
/* Locate `count` units of lines or sums from `first` on; those after the last are outside of images. */
static void NAME_locate(const NAME_axes *axes, int64_t length, int vectors, int64_t first, int64_t count,
                        NAME_position *to) {
  int64_t index[4], rest = first;
  for (int d = 3; d >= 0; d--) index[d] = rest % axes->extent[d], rest /= axes->extent[d];
  for (int64_t n = 0; n < count; n++, to++) {
    const int64_t left = vectors ? length - (first + n) * LINES : LINES;
    if (n && index[3])
      *to = (NAME_position){to[-1].at + axes->step[3], to[-1].row + axes->down[3],
                         to[-1].column + axes->across[3]};
    else {
      *to = (NAME_position){0};
      for (int d = 0; d < 4; d++) {
        to->at += index[d] * axes->step[d];
        to->row += index[d] * axes->down[d];
        to->column += index[d] * axes->across[d];
      }
    }
    to->lanes = left < LINES ? left : LINES;
    if (first + n >= axes->units) to->row = INT32_MIN, to->lanes = 0;
    if (++index[3] == axes->extent[3])
      for (int d = 3; d >= 0 && index[d] == axes->extent[d]; d--) index[d] = 0, d ? index[d - 1]++ : 0;
  }
}
/* The range of rows and columns of some units, and the valid lanes of the shortest vector. */
typedef struct {
  int64_t top, bottom, left, right, lanes;
} NAME_bounds;
static void NAME_bound(const NAME_position *places, int count, NAME_bounds *bounds) {
  *bounds = (NAME_bounds){places->row, places->row, places->column, places->column, places->lanes};
  for (const NAME_position *p = places + 1; p < places + count; p++) {
    if (p->row < bounds->top) bounds->top = p->row;
    if (p->row > bounds->bottom) bounds->bottom = p->row;
    if (p->column < bounds->left) bounds->left = p->column;
    if (p->column > bounds->right) bounds->right = p->column;
    if (p->lanes < bounds->lanes) bounds->lanes = p->lanes;
  }
}
/* Whether all vectors of some lines and sums are contiguous, full, and inside of an image. */
static int NAME_is_inside(const NAME_operand *o, const NAME_bounds *lines, const NAME_bounds *sums) {
  return o->lane == 1 && lines->lanes == LINES && sums->lanes == LINES &&
         o->row + lines->top + sums->top >= 0 && o->row + lines->bottom + sums->bottom < o->height &&
         o->column + lines->left + sums->left >= 0 &&
         o->column + lines->right + sums->right < o->width;
}
#define AT(l) mg_bits_of_float(from[(l) * lane])
MG_INLINE NAME_words NAME_load_strided(const float *from, int64_t lane) {
  return (NAME_words){AT(0), AT(1), AT(2),  AT(3),  AT(4),  AT(5),  AT(6),  AT(7),
                      AT(8), AT(9), AT(10), AT(11), AT(12), AT(13), AT(14), AT(15)};
}
#undef AT
/* Load a vector that may be outside of an image, or reach beyond the last line or sum. */
static NAME_words NAME_load(const NAME_operand *o, const float *x, const NAME_position *line,
                            const NAME_position *sum, uint32_t *border) {
  NAME_words v = {0};
  const int64_t row = o->row + line->row + sum->row, column = o->column + line->column + sum->column;
  *border = (uint64_t)row >= (uint64_t)o->height || (uint64_t)column >= (uint64_t)o->width ? BORDER : 0;
  if (*border) return v;
  const int64_t lanes = line->lanes < sum->lanes ? line->lanes : sum->lanes;
  const float *from = x + line->at + sum->at;
  if (o->lane == 1 && lanes == LINES) memcpy(&v, from, sizeof v);
  else if (lanes == LINES) v = NAME_load_strided(from, o->lane);
  else
    for (int64_t l = 0; l < lanes; l++) v[l] = mg_bits_of_float(from[l * o->lane]);
  return v;
}
/* Pack 16 lines of 32 sums into a tile for each part; return whether they are special. */
MG_INLINE int NAME_pack(const NAME_operand *o, const float *x, const NAME_position *lines,
                        const NAME_position *sums, int inside, int keep_special, NAME_words *to) {
  NAME_words overflow = {0};
  const int64_t vertical = o->vertical, next = vertical ? LINES : 1, ahead = AHEAD * 2 * next;
  for (int r = 0; r < LINES; r++, lines += !vertical, sums += vertical, to++) {
    NAME_words v[2];
    uint32_t border[2] = {0, 0};
    #pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      const NAME_position *sum = sums + h * next;
      if (inside) memcpy(&v[h], x + lines->at + sum->at, sizeof *v);
      else v[h] = NAME_load(o, x, lines, sum, &border[h]);
      __builtin_prefetch(x + lines->at + sum[ahead].at);
      overflow |= NAME_overflows(v[h]);
    }
    #pragma GCC unroll 4
    for (int p = 0; p < PARTS; p++) {
      const NAME_words low = NAME_part(&v[0], keep_special), high = NAME_part(&v[1], keep_special);
      const uint32_t borders = p == PARTS - 1 ? border[1] << 16 | border[0] : 0;
      to[p * 2 * TILE_BYTES / sizeof *to] = high | low >> 16 | borders;
    }
  }
  return NAME_any_overflow(overflow);
}
/* Pack a block of lines; `turned` says whether vectors are columns of a tile. */
static void NAME_pack_block(const NAME_operand *o, char **slots, int transpose, const NAME_position *lines,
                            const NAME_position *sums, const NAME_bounds *bounds, int64_t steps, char *to,
                            char *special) {
  const float *x = (const float *)(slots[o->slot] + o->offset) + o->first;
  const int64_t line_units = o->vertical ? 1 : LINES, step_units = o->vertical ? DEPTH : 2;
  NAME_bounds across[2];
  for (int half = 0; half < 2; half++) NAME_bound(lines + half * line_units, line_units, across + half);
  for (int64_t s = 0; s < steps; s++, sums += step_units, bounds++, special++) {
    *special = 0;
    for (int half = 0; half < 2; half++) {
      const NAME_position *line = lines + half * line_units;
      NAME_words *tile = (NAME_words *)(to + s * STEP + half * TILE_BYTES);
      const int overflow = NAME_is_inside(o, across + half, bounds)
                            ? NAME_pack(o, x, line, sums, 1, 0, tile)
                            : NAME_pack(o, x, line, sums, 0, 0, tile);
      if (overflow) *special = NAME_pack(o, x, line, sums, 0, 1, tile);
      for (int p = 0; p < PARTS && transpose; p++) NAME_transpose(tile + p * 2 * TILE_BYTES / sizeof *tile);
    }
  }
}
/* Add up the parts of a packed number; return 0 if it is one of the zeros around an image. */
MG_INLINE int NAME_unpack(const NAME_packed *x, int64_t step, int line, int sum, int across,
                          double *number) {
  const char *tile = x->tiles + x->at[step] + line / LINES * x->half;
  const int64_t row = across ? line % LINES : sum % LINES, word = across ? sum % LINES : line % LINES;
  uint32_t bits = 0;
  *number = 0;
  for (int p = 0; p < PARTS; p++) {
    memcpy(&bits, tile + p * x->part + row * sizeof(NAME_words) + word * sizeof bits, sizeof bits);
    bits = sum < LINES ? bits << 16 : bits & 0xffff0000u;
    *number += mg_float_of_bits(bits);
  }
  return bits != BORDER << 16;
}
/* Compute a block of results from special lines. */
static void NAME_multiply_special(int64_t steps, const NAME_packed *x, const NAME_packed *y, float *sums) {
  memset(sums, 0, BLOCK * BLOCK * sizeof *sums);
  for (int64_t s = 0; s < steps; s++)
    for (int k = 0; k < DEPTH; k++) {
      double row[BLOCK], v; /* the parts of the largest float may add up to more */
      int inside[BLOCK];
      for (int j = 0; j < BLOCK; j++) inside[j] = NAME_unpack(y, s, j, k, 0, &row[j]);
      for (int i = 0; i < BLOCK; i++)
        if (NAME_unpack(x, s, i, k, 1, &v))
          for (int j = 0; j < BLOCK; j++) sums[i * BLOCK + j] += inside[j] ? (float)(v * row[j]) : 0;
    }
}
static void NAME_multiply(int special, int64_t steps, const NAME_packed *x, const NAME_packed *y,
                          float *sums) {
  if (special) NAME_multiply_special(steps, x, y, sums);
  else NAME_multiply_block(steps, x, y, sums);
}
/* Write a block of results with their bias: some rows, and the columns of block j. */
static void NAME_write(const NAME_operand *o, char **slots, const NAME_position *rows, int64_t columns,
                       int64_t j, const int64_t *bias, const float *sums) {
  float *z = (float *)(slots[o->slot] + o->offset) + o->first;
  const int64_t left = columns - j * BLOCK;
  NAME_position units[2];
  NAME_floats add[2] = {{0}, {0}};
  NAME_locate(&o->sums, columns, 1, 2 * j, 2, units);
  if (bias[0] >= 0)
    memcpy(add, slots[bias[0]] + bias[1] + j * BLOCK * sizeof(float),
           (left < BLOCK ? left : BLOCK) * sizeof(float));
  if (o->lane == 1 && units[0].lanes == LINES && units[1].lanes == LINES) {
    for (int i = 0; i < BLOCK; i++, sums += BLOCK) {
      const NAME_floats left = *(const NAME_floats *)sums + add[0];
      const NAME_floats right = *(const NAME_floats *)(sums + LINES) + add[1];
      if (!rows[i].lanes) continue;
      memcpy(z + rows[i].at + units[0].at, &left, sizeof left);
      memcpy(z + rows[i].at + units[1].at, &right, sizeof right);
    }
    return;
  }
  for (int i = 0; i < BLOCK; i++)
    for (int u = 0; u < 2 && rows[i].lanes; u++) {
      float *to = z + rows[i].at + units[u].at;
      const NAME_floats v = *(const NAME_floats *)(sums + i * BLOCK + u * LINES) + add[u];
      for (int64_t l = 0; l < units[u].lanes; l++) to[l * o->lane] = v[l];
    }
}
/* Pack `count` steps of all lines of an operand; all threads share the work. */
MG_NOINLINE void NAME_pack_lines(const NAME_operand *o, char **slots, int are_rows, int64_t length,
                                 int64_t sums, int64_t begun, int64_t count, int64_t panel, char *to,
                                 char *special) {
  NAME_position across[(PANEL + AHEAD) * DEPTH], lines[BLOCK];
  NAME_bounds bounds[PANEL];
  const int64_t step_units = o->vertical ? DEPTH : 2, line_units = o->vertical ? 2 : BLOCK;
  int64_t located = -1;
  NAME_locate(&o->sums, sums, !o->vertical, begun * step_units, (count + AHEAD) * step_units, across);
  for (int64_t s = 0; s < count; s++) NAME_bound(across + s * step_units, step_units, bounds + s);
  #pragma omp for schedule(static)
  for (int64_t task = 0; task < (length + BLOCK - 1) / BLOCK * count; task++) {
    const int64_t j = task / count, s = task % count;
    if (j != located) NAME_locate(&o->lines, length, o->vertical, j * line_units, line_units, lines);
    located = j;
    NAME_pack_block(o, slots, o->vertical == are_rows, lines, across + s * step_units, bounds + s, 1,
               to + (j * panel + s) * STEP, special + j * panel + s);
  }
}
