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
  const int64_t streamed_lines = flipped ? h->columns : h->rows, packed_lines = flipped ? h->rows : h->columns;
  const int64_t down = (streamed_lines + BLOCK - 1) / BLOCK, wide = (packed_lines + BLOCK - 1) / BLOCK;
  const int64_t steps = (h->sums + DEEP - 1) / DEEP;
  const int64_t downs = (down + h->height - 1) / h->height, wides = (wide + h->width - 1) / h->width;
  const int64_t deep = streamed->vertical ? DEEP : 2, tall = streamed->vertical ? 2 : BLOCK;
  char *const there = slots[h->memory[0]] + h->memory[1];
  char *const special_there = there + wide * h->panel * STEP;
  char *const memory = special_there + (wide * h->panel + 63) / 64 * 64;
  const int64_t share = h->height * h->panel * (STEP + 64);
  float *const kept = (float *)(memory + h->threads * share);
  #pragma omp parallel num_threads(h->threads) if (h->threads > 1)
  {
    char *const here = memory + omp_get_thread_num() * share;
    char *const special_here = here + h->height * h->panel * STEP;
    NAME_position sums[(PANEL + AHEAD) * DEEP], lines[BLOCK], rows[HEIGHT * BLOCK];
    NAME_bounds spans[PANEL];
    int64_t at[PANEL];
    float block[BLOCK * BLOCK] __attribute__((aligned(64)));
    for (int64_t s = 0; s < PANEL; s++) at[s] = s * STEP;
    NAME_load_config();
    for (int64_t begun = 0; begun < steps || !begun; begun += h->panel) {
      const int64_t count = steps - begun < h->panel ? steps - begun : h->panel;
      NAME_pack_lines(packed, slots, flipped, packed_lines, h->sums, begun, count, h->panel, there,
                        special_there);
      NAME_locate(&streamed->sums, h->sums, !streamed->vertical, begun * deep, (count + AHEAD) * deep, sums);
      for (int64_t s = 0; s < count; s++) NAME_bound(sums + s * deep, deep, spans + s);
      #pragma omp for schedule(dynamic)
      for (int64_t task = 0; task < downs * wides; task++) {
        const int64_t first = task / wides * h->height, rest = down - first;
        const int64_t high = rest < h->height ? rest : h->height;
        for (int64_t i = 0; i < high; i++) {
          NAME_locate(&streamed->lines, streamed_lines, streamed->vertical, (first + i) * tall, tall, lines);
          NAME_pack_block(streamed, slots, streamed->vertical != flipped, lines, sums, spans, count,
                     here + i * h->panel * STEP, special_here + i * h->panel);
        }
        if (!flipped) NAME_locate(&h->z.lines, h->rows, 0, first * BLOCK, high * BLOCK, rows);
        const int64_t begin = task % wides * h->width, end = begin + h->width;
        for (int64_t j = begin; j < end && j < wide; j++) {
          if (flipped) NAME_locate(&h->z.lines, h->rows, 0, j * BLOCK, BLOCK, rows);
          for (int64_t i = 0; i < high; i++) {
            const int special = memchr(special_here + i * h->panel, 1, count) ||
                                memchr(special_there + j * h->panel, 1, count);
            const NAME_packed one = {here + i * h->panel * STEP, at, TILE_BYTES, 2 * TILE_BYTES};
            const NAME_packed other = {there + j * h->panel * STEP, at, TILE_BYTES, 2 * TILE_BYTES};
            NAME_multiply(special, count, flipped ? &other : &one, flipped ? &one : &other, block);
            float *const sum = kept + ((first + i) * wide + j) * BLOCK * BLOCK;
            if (begun)
              for (int l = 0; l < BLOCK * BLOCK; l++) block[l] += sum[l];
            if (begun + count < steps) memcpy(sum, block, sizeof block);
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
