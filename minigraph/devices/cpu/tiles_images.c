/* Convolutions of stride 1 of images in vectors of LINES channels.

   A strip is some rows of an image with their halo, in parts: a word is a pair of channels LINES apart,
   and a pixel's words of DEPTH channels are a row of a tile.  So consecutive pixels, also from one row to
   the next, are a tile, at every tap.  Results behind the end of a row are not written.

   The argument block is a NAME_arguments. */
typedef struct {
  int64_t threads, lines, columns, sums;
  int64_t panel; /* steps that are accumulated in registers */
  int64_t rows;  /* of results of a strip */
  int64_t group; /* strips of a task */
  int64_t memory[2], bias[2];
  NAME_operand x, y, z;
} NAME_arguments;
typedef struct { /* image, first row, rows of results, and the parts of its pixels */
  int64_t image, first, rows;
  int special;
  char *parts;
} NAME_strip;
typedef struct { /* pixels of a strip's row, rows; bytes of DEPTH channels, and of a part */
  int64_t pitch, height, plane, part;
} NAME_shape;
/* Split the numbers of a strip into parts; return whether they are special. */
MG_INLINE int NAME_split_strip(const NAME_operand *o, const NAME_strip *strip, const NAME_shape *shape,
                               char **slots, int keep_special) {
  const NAME_axes *lines = &o->lines, *sums = &o->sums;
  NAME_words overflow = {0};
  for (int64_t c = 0; c < sums->extent[0]; c++)
    for (int64_t r = 0; r < shape->height; r++) {
      const int64_t row = o->row + strip->first + r, inside = row >= 0 && row < o->height;
      const float *x = (const float *)(slots[o->slot] + o->offset) + strip->image * lines->step[1] +
                       row * lines->step[2] + c * sums->step[0];
      char *to = strip->parts + c * shape->plane + r * shape->pitch * PIXEL;
      for (int64_t p = 0; p < shape->pitch; p++, to += PIXEL) {
        const int64_t column = o->column + p;
        NAME_words v[2] = {{0}, {0}};
        uint32_t border = BORDER << 16 | BORDER;
        if (inside && column >= 0 && column < o->width) {
          memcpy(&v[0], x + column * lines->step[3], PIXEL);
          memcpy(&v[1], x + column * lines->step[3] + sums->step[3], PIXEL);
          border = 0;
        }
        overflow |= NAME_overflows(v[0]) | NAME_overflows(v[1]);
        #pragma GCC unroll 4
        for (int q = 0; q < PARTS; q++) {
          const NAME_words low = NAME_part(&v[0], keep_special), high = NAME_part(&v[1], keep_special);
          *(NAME_words *)(to + q * shape->part) = high | low >> 16 | (q == PARTS - 1 ? border : 0);
        }
      }
    }
  return NAME_any_overflow(overflow);
}
int NAME(const int64_t *a, char **slots) {
  const NAME_arguments *h = (const NAME_arguments *)a;
  const NAME_axes *lines = &h->x.lines, *sums = &h->x.sums;
  const int64_t column_blocks = (h->columns + BLOCK - 1) / BLOCK, steps = h->sums / DEPTH;
  const int64_t panels = (steps + h->panel - 1) / h->panel;
  const int64_t strips_per_image = (lines->extent[2] + h->rows - 1) / h->rows;
  const int64_t strips = lines->extent[1] * strips_per_image;
  const int64_t taps = sums->extent[2], halo_columns = (taps - 1) * sums->across[2];
  NAME_shape shape = {lines->extent[3] + halo_columns, h->rows + (sums->extent[1] - 1) * sums->down[1]};
  shape.plane = shape.height * shape.pitch * PIXEL;
  /* The last block reads beyond the last row. */
  shape.part = shape.plane * sums->extent[0] + (2 * BLOCK + halo_columns) * PIXEL;
  int64_t *const x_at = (int64_t *)(slots[h->memory[0]] + h->memory[1]);
  char *const y = (char *)(x_at + (steps + 7) / 8 * 8);
  char *const y_special = y + panels * column_blocks * h->panel * STEP;
  char *const memory = y_special + (panels * column_blocks * h->panel + 63) / 64 * 64;
  #pragma omp parallel num_threads(h->threads) if (h->threads > 1)
  {
    NAME_strip group[MAX_STRIPS];
    NAME_position rows[BLOCK];
    float block[BLOCK * BLOCK] __attribute__((aligned(64)));
    float panel_sums[BLOCK * BLOCK] __attribute__((aligned(64)));
    int64_t y_at[PANEL];
    for (int64_t s = 0; s < PANEL; s++) y_at[s] = s * STEP;
    NAME_load_config();
    #pragma omp for schedule(static)
    for (int64_t s = 0; s < steps; s++) {
      const int64_t down = s / taps % sums->extent[1] * sums->down[1], across = s % taps * sums->across[2];
      x_at[s] = s / taps / sums->extent[1] * shape.plane + (down * shape.pitch + across) * PIXEL;
    }
    for (int64_t p = 0; p < panels; p++) {
      const int64_t left = steps - p * h->panel, at = p * column_blocks * h->panel;
      NAME_pack_lines(&h->y, slots, 0, h->columns, h->sums, p * h->panel,
                        left < h->panel ? left : h->panel, h->panel, y + at * STEP, y_special + at);
    }
    #pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < (strips + h->group - 1) / h->group; task++) {
      int64_t count = 0;
      for (int64_t i = task * h->group; i < strips && count < h->group; i++, count++) {
        NAME_strip *strip = group + count;
        const int64_t first = i % strips_per_image * h->rows, left = lines->extent[2] - first;
        *strip = (NAME_strip){i / strips_per_image, first, left < h->rows ? left : h->rows};
        strip->parts = memory + (omp_get_thread_num() * h->group + count) * PARTS * shape.part;
        strip->special = NAME_split_strip(&h->x, strip, &shape, slots, 0);
        if (strip->special) NAME_split_strip(&h->x, strip, &shape, slots, 1);
      }
      for (int64_t j = 0; j < column_blocks; j++)
        for (const NAME_strip *strip = group; strip < group + count; strip++)
          for (int64_t row = 0, column = 0, pixel = 0; row < strip->rows; pixel += BLOCK) {
            for (int64_t p = 0; p < panels; p++) {
              const int64_t first_step = p * h->panel, left = steps - first_step;
              const int64_t at = (p * column_blocks + j) * h->panel;
              const int64_t panel_steps = left < h->panel ? left : h->panel;
              const int special = strip->special || memchr(y_special + at, 1, panel_steps);
              const NAME_packed x = {strip->parts + pixel * PIXEL, x_at + first_step, TILE_BYTES, shape.part};
              const NAME_packed columns = {y + at * STEP, y_at, TILE_BYTES, 2 * TILE_BYTES};
              NAME_multiply(special, panel_steps, &x, &columns, p ? panel_sums : block);
              for (int l = 0; p && l < BLOCK * BLOCK; l++) block[l] += panel_sums[l];
            }
            for (int i = 0; i < BLOCK; i++) {
              const int64_t *step = h->z.lines.step;
              rows[i].at = strip->image * step[1] + (strip->first + row) * step[2] + column * step[3];
              rows[i].lanes = column < lines->extent[3] && row < strip->rows;
              if (++column == shape.pitch) column = 0, row++;
            }
            NAME_write(&h->z, slots, rows, h->columns, j, h->bias, block);
          }
    }
    NAME_release_tiles();
  }
  return 0;
}
