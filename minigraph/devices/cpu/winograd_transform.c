/* Transform the pixels of a tile to its points, v[point * point_stride + block * capacity].

   TRANSFORM_TILE  name of this function
   TRANSFORM_LINE  function that transforms a line of pixels
   PATCH           pixels on each side
   CELL            side of a cell of pixels, of which each window of the tile contains a whole one; or 0

   Return whether the squares of a cell are so small beside the tile's that NAME_compare_magnitudes has
   to decide. */
MG_CONTRACT int TRANSFORM_TILE(const NAME_images *q, const NAME_patch *patch, int64_t capacity, vec *v,
                               int64_t point_stride) {
  const int64_t blocks = q->blocks, width = q->w, block = q->h * width;
  const int64_t corner = patch->corner, step = patch->whole ? width : PATCH;
  const vec *x = q->pixels;
#if CELL
  enum { CELLS = PATCH / CELL };
  vec cells[CELLS * CELLS] MG_ALIGNED = {{0}};
#endif
  for (int64_t b = 0; b < blocks; b++, x += block, v += capacity) {
    /* Rows of a tile are far apart in memory: the hardware prefetcher does not follow them. */
    const int64_t next = b + 1 < blocks ? block : TILE - b * block;
    NAME_prefetch(x + corner + next, width, PATCH, 0);
    vec pixels[PATCH * PATCH] MG_ALIGNED, half[SIDE * PATCH] MG_ALIGNED;
    if (!patch->whole)
      for (int64_t p = 0; p < PATCH * PATCH; p++) {
        const int64_t offset = patch->rows[p / PATCH] + patch->columns[p % PATCH];
        pixels[p] = offset < 0 ? (vec){0} : x[offset];
      }
    const vec *from = patch->whole ? x + corner : pixels;
#if CELL
    for (int64_t c = 0; c < CELLS * CELLS; c++) {
      const vec *cell = from + c / CELLS * CELL * step + c % CELLS * CELL;
      vec sums[2] = {cells[c], {0}}; /* two chains of additions, to hide their latency */
      for (int64_t i = 0; i < CELL; i++)
        for (int64_t j = 0; j < CELL; j++)
          sums[(i + j) % 2] += cell[i * step + j] * cell[i * step + j];
      cells[c] = sums[0] + sums[1];
    }
#endif
    for (int64_t j = 0; j < PATCH; j++) TRANSFORM_LINE(from + j, step, half + j, PATCH);
    for (int64_t i = 0; i < SIDE; i++)
      TRANSFORM_LINE(half + i * PATCH, 1, v + i * SIDE * point_stride, point_stride);
  }
#if CELL
  float total = 0, smallest = INFINITY;
  for (int64_t p = 0; p < CELLS * CELLS; p++) {
    float sum = 0;
    for (int l = 0; l < L; l++) sum += cells[p][l];
    total += sum;
    smallest = sum < smallest ? sum : smallest;
  }
  return !(smallest * MAX_RATIO >= total && total < INFINITY);
#else
  return 0;
#endif
}
