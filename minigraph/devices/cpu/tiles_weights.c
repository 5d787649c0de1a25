/* Gradients for the weights of convolutions of stride 1: sums over pixels of x = dy and y = images.

   A strip is some rows of a few images, with their halo.  Each pixel of the images begins a word, a
   pair of pixels LINES apart, so that a tile can begin at any pixel, and so at every tap.  Pixels are
   consecutive from one row to the next; dy has zeros in the columns of the halo.

   The argument block is a NAME_arguments. */
typedef struct {
  int64_t threads, lines, columns, sums;
  int64_t rows;  /* of a strip */
  int64_t group; /* images of a strip */
  int64_t memory[2], bias[2];
  NAME_operand x, y, z;
} NAME_arguments;
typedef struct { /* consecutive pixels from (row, column) on, in rows of `pitch`; zeros outside */
  const float *pixels;
  int64_t row, column, height, width, row_step, pixel_step, pitch;
} NAME_pixel_rows;
/* Pack the words of `count` consecutive pixels; return whether they are special. */
MG_INLINE int NAME_pack_pixels(const NAME_pixel_rows *o, int64_t count, int64_t part, int keep_special,
                               char *to) {
  NAME_words last[PARTS][LINES] = {{{0}}}, overflow = {0};
  int64_t row = o->row, column = o->column;
  for (int64_t first = -LINES; first < count; first += LINES)
    for (int64_t i = 0; i < LINES; i++) {
      NAME_words v = {0};
      uint32_t border = 0;
      if (row >= 0 && row < o->height && column >= 0 && column < o->width)
        memcpy(&v, o->pixels + row * o->row_step + column * o->pixel_step, sizeof v);
      else border = BORDER << 16;
      if (++column == o->column + o->pitch) column = o->column, row++;
      overflow |= NAME_overflows(v);
      #pragma GCC unroll 4
      for (int p = 0; p < PARTS; p++) {
        const NAME_words now = NAME_part(&v, keep_special) | (p == PARTS - 1 ? border : 0);
        if (first >= 0) *(NAME_words *)(to + p * part + (first + i) * PIXEL) = now | last[p][i] >> 16;
        last[p][i] = now;
      }
    }
  return NAME_any_overflow(overflow);
}
int NAME(const int64_t *a, char **slots) {
  const NAME_arguments *h = (const NAME_arguments *)a;
  const NAME_axes *pixels = &h->x.sums, *taps = &h->y.lines, *around = &h->y.sums;
  const int64_t row_blocks = (h->lines + BLOCK - 1) / BLOCK, column_blocks = h->columns / BLOCK;
  const int64_t images = pixels->extent[1], image_rows = pixels->extent[2], pitch = pixels->extent[3];
  const int64_t halo_rows = (taps->extent[1] - 1) * taps->down[1], vectors = 2 * taps->extent[0];
  /* Of an image's rows in a strip: steps, words, and bytes of 16 channels in one part and in all. */
  const int64_t steps = (h->rows * pitch + DEPTH - 1) / DEPTH;
  const int64_t words = ((steps + 1) * DEPTH + halo_rows * pitch) / LINES * LINES;
  const int64_t part = words * PIXEL, vector_bytes = PARTS * part, image_bytes = vectors * vector_bytes;
  char *const x = slots[h->memory[0]] + h->memory[1];
  char *const y = x + row_blocks * h->group * steps * STEP;
  float *const partial_sums = (float *)(y + h->group * image_bytes);
  char *const x_special = (char *)(partial_sums + row_blocks * column_blocks * BLOCK * BLOCK);
  char *const y_special = x_special + row_blocks * h->group * steps;
  #pragma omp parallel num_threads(h->threads) if (h->threads > 1)
  {
    NAME_position sums[(PANEL + AHEAD) * DEPTH], lines[BLOCK];
    NAME_bounds bounds[PANEL];
    int64_t x_at[PANEL], y_at[PANEL];
    float block[BLOCK * BLOCK] __attribute__((aligned(64)));
    for (int64_t s = 0; s < h->group * steps; s++) {
      x_at[s] = s * STEP;
      y_at[s] = s / steps * image_bytes + s % steps * DEPTH * PIXEL;
    }
    NAME_load_config();
    for (int64_t image = 0; image < images; image += h->group)
      for (int64_t first = 0; first < image_rows; first += h->rows) {
        const int64_t left = images - image, group = left < h->group ? left : h->group;
        const int64_t end = first + h->rows < image_rows ? first + h->rows : image_rows;
        #pragma omp for schedule(static)
        for (int64_t task = 0; task < group * (row_blocks + vectors); task++) {
          const int64_t g = task % group, i = task / group;
          if (i < row_blocks) {
            NAME_axes strip_pixels = *pixels;
            /* The pixels of other strips are zeros. */
            strip_pixels.units = ((image + g) * image_rows + end) * pitch;
            NAME_locate(&strip_pixels, strip_pixels.units, 0, ((image + g) * image_rows + first) * pitch,
                        (steps + AHEAD) * DEPTH, sums);
            for (int64_t s = 0; s < steps; s++) NAME_bound(sums + s * DEPTH, DEPTH, bounds + s);
            NAME_locate(&h->x.lines, h->lines, 1, 2 * i, 2, lines);
            const int64_t at = i * h->group * steps + g * steps;
            NAME_pack_block(&h->x, slots, 1, lines, sums, bounds, steps, x + at * STEP, x_special + at);
          } else {
            const int64_t u = i - row_blocks;
            const float *from = (const float *)(slots[h->y.slot] + h->y.offset);
            from += (image + g) * around->step[1] + u / 2 * taps->step[0] + u % 2 * taps->step[3];
            const NAME_pixel_rows rows = {from, h->y.row + first, h->y.column, h->y.height, h->y.width,
                                          around->step[2], around->step[3], pitch};
            char *const to = y + g * image_bytes + u * vector_bytes;
            const int overflow = NAME_pack_pixels(&rows, words, part, 0, to);
            if (overflow) NAME_pack_pixels(&rows, words, part, 1, to);
            y_special[g * vectors + u] = overflow;
          }
        }
        #pragma omp for schedule(static)
        for (int64_t task = 0; task < row_blocks * column_blocks; task++) {
          const int64_t window = taps->extent[1] * taps->extent[2], tap = task % window;
          const int64_t i = task / window % row_blocks, c = task / window / row_blocks, count = group * steps;
          const int64_t row = tap / taps->extent[2] * taps->down[1];
          const int64_t column = tap % taps->extent[2] * taps->across[2];
          const NAME_packed of_x = {x + i * h->group * steps * STEP, x_at, TILE_BYTES, 2 * TILE_BYTES};
          const NAME_packed of_y = {y + 2 * c * vector_bytes + (row * pitch + column) * PIXEL, y_at,
                                    vector_bytes, part};
          int special = memchr(x_special + i * h->group * steps, 1, count) != 0;
          for (int64_t g = 0; g < group; g++)
            special |= y_special[g * vectors + 2 * c] | y_special[g * vectors + 2 * c + 1];
          NAME_multiply(special, count, &of_x, &of_y, block);
          float *const sum = partial_sums + task * BLOCK * BLOCK;
          if (image || first)
            for (int l = 0; l < BLOCK * BLOCK; l++) block[l] += sum[l];
          if (image + group < images || end < image_rows) memcpy(sum, block, sizeof block);
          else {
            NAME_locate(&h->z.lines, h->lines, 0, i * BLOCK, BLOCK, lines);
            NAME_write(&h->z, slots, lines, h->columns, c * window + tap, h->bias, block);
          }
        }
      }
    NAME_release_tiles();
  }
  return 0;
}
