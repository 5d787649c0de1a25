/* Products of any lines.  All threads pack the operand with fewer lines, which stays in the caches; then
   each thread packs a few blocks of the other operand at a time, and multiplies these.

   The argument block is a NAME_arguments. */
typedef struct {
  int64_t threads, rows, columns, sums;
  int64_t panel;   /* steps that are packed at once */
  int64_t height;  /* blocks that a thread packs at once */
  int64_t width;   /* blocks of the other operand that it multiplies them by */
  int64_t flipped; /* whether x has fewer lines */
  int64_t memory[2], bias[2];
  NAME_operand x, y, z;
} NAME_arguments;
int NAME(const int64_t *a, char **slots) {
  const NAME_arguments *h = (const NAME_arguments *)a;
  const int flipped = h->flipped != 0;
  const NAME_operand *streamed = flipped ? &h->y : &h->x, *packed = flipped ? &h->x : &h->y;
  const int64_t streamed_lines = flipped ? h->columns : h->rows;
  const int64_t packed_lines = flipped ? h->rows : h->columns;
  const int64_t streamed_blocks = (streamed_lines + BLOCK - 1) / BLOCK;
  const int64_t packed_blocks = (packed_lines + BLOCK - 1) / BLOCK;
  const int64_t steps = (h->sums + DEPTH - 1) / DEPTH;
  const int64_t streamed_groups = (streamed_blocks + h->height - 1) / h->height;
  const int64_t packed_groups = (packed_blocks + h->width - 1) / h->width;
  const int64_t step_units = streamed->vertical ? DEPTH : 2, line_units = streamed->vertical ? 2 : BLOCK;
  char *const packed_tiles = slots[h->memory[0]] + h->memory[1];
  char *const packed_special = packed_tiles + packed_blocks * h->panel * STEP;
  char *const memory = packed_special + (packed_blocks * h->panel + 63) / 64 * 64;
  const int64_t thread_bytes = h->height * h->panel * (STEP + 64);
  float *const partial_sums = (float *)(memory + h->threads * thread_bytes);
  #pragma omp parallel num_threads(h->threads) if (h->threads > 1)
  {
    char *const streamed_tiles = memory + omp_get_thread_num() * thread_bytes;
    char *const streamed_special = streamed_tiles + h->height * h->panel * STEP;
    NAME_position sums[(PANEL + AHEAD) * DEPTH], lines[HEIGHT * BLOCK], rows[HEIGHT * BLOCK];
    NAME_bounds bounds[PANEL];
    int64_t at[PANEL];
    float block[BLOCK * BLOCK] __attribute__((aligned(64)));
    for (int64_t s = 0; s < PANEL; s++) at[s] = s * STEP;
    NAME_load_config();
    for (int64_t first_step = 0; first_step < steps || !first_step; first_step += h->panel) {
      const int64_t count = steps - first_step < h->panel ? steps - first_step : h->panel;
      /* Steps of a block that are packed at once: one if the next vector in memory is another block's. */
      const int64_t run = streamed->lines.step[3] < streamed->sums.step[3] ? 1 : count;
      NAME_pack_lines(packed, slots, flipped, packed_lines, h->sums, first_step, count, h->panel,
                      packed_tiles, packed_special);
      NAME_locate(&streamed->sums, h->sums, !streamed->vertical, first_step * step_units,
                  (count + AHEAD) * step_units, sums);
      for (int64_t s = 0; s < count; s++) NAME_bound(sums + s * step_units, step_units, bounds + s);
      #pragma omp for schedule(dynamic)
      for (int64_t task = 0; task < streamed_groups * packed_groups; task++) {
        const int64_t first = task / packed_groups * h->height, rest = streamed_blocks - first;
        const int64_t blocks = rest < h->height ? rest : h->height;
        NAME_locate(&streamed->lines, streamed_lines, streamed->vertical, first * line_units,
                    blocks * line_units, lines);
        for (int64_t s = 0; s < count; s += run)
          for (int64_t i = 0; i < blocks; i++)
            NAME_pack_block(streamed, slots, streamed->vertical != flipped, lines + i * line_units,
                            sums + s * step_units, bounds + s, run, streamed_tiles + (i * h->panel + s) * STEP,
                            streamed_special + i * h->panel + s);
        if (!flipped) NAME_locate(&h->z.lines, h->rows, 0, first * BLOCK, blocks * BLOCK, rows);
        const int64_t begin = task % packed_groups * h->width, end = begin + h->width;
        for (int64_t j = begin; j < end && j < packed_blocks; j++) {
          if (flipped) NAME_locate(&h->z.lines, h->rows, 0, j * BLOCK, BLOCK, rows);
          for (int64_t i = 0; i < blocks; i++) {
            const int special = memchr(streamed_special + i * h->panel, 1, count) ||
                                memchr(packed_special + j * h->panel, 1, count);
            const NAME_packed p = {streamed_tiles + i * h->panel * STEP, at, TILE_BYTES, 2 * TILE_BYTES};
            const NAME_packed q = {packed_tiles + j * h->panel * STEP, at, TILE_BYTES, 2 * TILE_BYTES};
            NAME_multiply(special, count, flipped ? &q : &p, flipped ? &p : &q, block);
            float *const sum = partial_sums + ((first + i) * packed_blocks + j) * BLOCK * BLOCK;
            if (first_step)
              for (int l = 0; l < BLOCK * BLOCK; l++) block[l] += sum[l];
            if (first_step + count < steps) memcpy(sum, block, sizeof block);
            else NAME_write(&h->z, slots, flipped ? rows : rows + i * BLOCK, h->columns,
                            flipped ? first + i : j, h->bias, block);
          }
        }
      }
    }
    NAME_release_tiles();
  }
  return 0;
}
