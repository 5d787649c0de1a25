/* From the pixels of a tile to its points, v[point * gap + block * room].

   SPREAD     the name of this function
   TRANSFORM  the function that transforms pixels in a line
   PATCH      how many pixels there are on each side */
MG_FAST void SPREAD(const NAME_images *q, const NAME_tiles *z, int64_t tile, vec *v, int64_t gap) {
  const int64_t image = tile / (z->down * z->across);
  const int64_t top = tile / z->across % z->down * TILE - q->top;
  const int64_t left = tile % z->across * TILE - q->left;
  const int inside = top >= 0 && left >= 0 && top + PATCH <= q->h && left + PATCH <= q->w;
  const vec *x = q->at + image * q->blocks * q->h * q->w;
  for (int64_t b = 0; b < q->blocks; b++, x += q->h * q->w, v += z->room) {
    vec pixels[PATCH * PATCH] MG_ALIGNED, half[SIDE * PATCH] MG_ALIGNED;
    if (!inside)
      for (int64_t i = 0; i < PATCH; i++)
        for (int64_t j = 0; j < PATCH; j++) {
          const int64_t row = top + i, column = left + j;
          const int there = row >= 0 && row < q->h && column >= 0 && column < q->w;
          pixels[i * PATCH + j] = there ? x[row * q->w + column] : (vec){0};
        }
    const vec *from = inside ? x + top * q->w + left : pixels;
    const int64_t step = inside ? q->w : PATCH;
    for (int64_t j = 0; j < PATCH; j++) TRANSFORM(from + j, step, half + j, PATCH);
    for (int64_t i = 0; i < SIDE; i++)
      TRANSFORM(half + i * PATCH, 1, v + i * SIDE * gap, gap);
  }
}
