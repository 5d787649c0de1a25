/* Images from images, a convolution or the gradient for its input: sums over taps, in registers.

   Pixels of y that meet the same taps form a set, so that no padding is read.  Along a set the pixels
   of x that a tap meets are a constant step apart, as those of y are.

   The argument block: images; blocks of x and of y; height and width of x, then of y; the weights' steps
   in floats (from one output to the next, one input, one tap); whether there is a bias; blocks of x
   whose arranged weights are used at once; images and rows of y of a strip; how far in x consecutive
   pixels of a set are apart, down and across; how many sets there are, down and across; threads; then
   what `arranged.py` adds, which uses no other memory; then the sets.

   L    lanes: channels of a block of y
   LX   channels of a block of x: as many, or 1 for images in nchw
   NV   blocks of outputs whose sums are kept in registers
   TAPS of a window
   ACROSS of them in a row
   LINE statements that compute the pixels t to `count` of a line */
#pragma clang fp contract(fast)
typedef float NAME_vec __attribute__((vector_size(L * 4), aligned(4), may_alias));
typedef struct { /* a set along one axis: its pixels of y, and the taps that they meet */
  int64_t first, step, size, tap, tap_step, taps;
  int64_t start, start_step; /* in x: what the first pixel meets with the first tap; from tap to tap */
} NAME_set;
typedef struct {
  int64_t n, in, out, xh, xw, yh, yw, w_out, w_in, w_tap, has_bias, chunk, images, rows;
  int64_t down, across, sets_down, sets_across, threads, work;
  int64_t x[2], w[2], bias[2], y[2], none[2], arranged[2];
} NAME_block;
typedef struct { /* what is summed for each pixel, in floats of x and vectors of arranged weights */
  int64_t blocks, x_block, taps_down, x_down, w_down, taps_across, x_across, w_across;
  int64_t x_pixel, y_pixel, y_block; /* from pixel to pixel of a group; from block to block of y */
  const vec *bias; /* or 0 where y has sums already, to which these are added */
} NAME_sums;
PRODUCTS
/* Pixels of y that follow each other in a set. */
MG_FAST void NAME_line(const NAME_sums *q, int64_t count, const float *x, const vec *w, vec *y) {
  int64_t t = 0;
  LINE
}
/* The part of a set along an axis that lies in the pixels from `begin` to `end` of y. */
MG_FAST NAME_set NAME_part(NAME_set s, int64_t x_step, int64_t begin, int64_t end) {
  const int64_t skipped = s.first < begin ? (begin - s.first + s.step - 1) / s.step : 0;
  const int64_t reached = s.first < end ? (end - s.first + s.step - 1) / s.step : 0;
  s.size = (reached < s.size ? reached : s.size) - skipped;
  s.first += skipped * s.step;
  s.start += skipped * x_step;
  return s;
}
/* The pixels of a set of rows and a set of columns: NV blocks of an image of y. */
MG_FAST void NAME_pixels(const NAME_block *a, NAME_sums q, const NAME_set *r, const NAME_set *c,
                         const float *x, const vec *w, vec *y) {
  q.taps_down = r->taps;
  q.x_down = r->start_step * a->xw * LX;
  q.w_down = r->tap_step * ACROSS * LX * NV;
  q.taps_across = c->taps;
  q.x_across = c->start_step * LX;
  q.w_across = c->tap_step * LX * NV;
  x += (r->start * a->xw + c->start) * LX;
  w += (r->tap * ACROSS + c->tap) * LX * NV;
  y += r->first * a->yw + c->first;
  const int64_t x_row = a->down * a->xw * LX, x_column = a->across * LX;
  const int64_t y_row = r->step * a->yw, y_column = c->step;
  if (c->size >= r->size) {
    q.x_pixel = x_column;
    q.y_pixel = y_column;
    for (int64_t i = 0; i < r->size; i++) NAME_line(&q, c->size, x + i * x_row, w, y + i * y_row);
  } else {
    q.x_pixel = x_row;
    q.y_pixel = y_row;
    for (int64_t j = 0; j < c->size; j++) NAME_line(&q, r->size, x + j * x_column, w, y + j * y_column);
  }
}
/* NV blocks of y from block k on, in the rows from `top` to `bottom` of the images `first` to `last`. */
MG_FAST void NAME_strip(const NAME_block *a, const NAME_set *sets, char **slots, int64_t k,
                        int64_t first, int64_t last, int64_t top, int64_t bottom) {
  const float *x = (const float *)(slots[a->x[0]] + a->x[1]);
  const vec *w = (const vec *)(slots[a->arranged[0]] + a->arranged[1]) + k * a->in * TAPS * LX;
  vec *y = (vec *)(slots[a->y[0]] + a->y[1]);
  const vec none[NV] = {{0}};
  const vec *bias = a->has_bias ? (const vec *)(slots[a->bias[0]] + a->bias[1]) + k : none;
  NAME_sums q = {0};
  q.x_block = a->xh * a->xw * LX;
  q.y_block = a->yh * a->yw;
  for (int64_t b = 0; b < a->in; b += a->chunk) {
    q.blocks = a->in - b < a->chunk ? a->in - b : a->chunk;
    q.bias = b ? 0 : bias;
    for (int64_t n = first; n < last; n++)
      for (int64_t i = 0; i < a->sets_down; i++) {
        const NAME_set r = NAME_part(sets[i], a->down, top, bottom);
        if (r.size > 0)
          for (int64_t j = 0; j < a->sets_across; j++)
            NAME_pixels(a, q, &r, sets + a->sets_down + j, x + (n * a->in + b) * q.x_block,
                        w + b * TAPS * LX * NV, y + (n * a->out + k) * q.y_block);
      }
  }
}
/* The weights of NV blocks of outputs, from block k on, at one block of inputs. */
MG_FAST void NAME_arrange(const NAME_block *a, const float *w, int64_t k, int64_t b, float *to) {
  w += k * L * a->w_out + b * LX * a->w_in;
  for (int64_t o = 0; o < NV * L; o++)
    for (int64_t l = 0; l < LX; l++)
      for (int64_t t = 0; t < TAPS; t++)
        to[(t * LX + l) * NV * L + o] = w[o * a->w_out + l * a->w_in + t * a->w_tap];
}
int NAME(const int64_t *words, char **slots) {
  const NAME_block *a = (const NAME_block *)words;
  const NAME_set *sets = (const NAME_set *)(a + 1);
  const float *w = (const float *)(slots[a->w[0]] + a->w[1]);
  float *arranged = (float *)(slots[a->arranged[0]] + a->arranged[1]);
  const int64_t groups = a->out / NV;
  const int64_t upright = (a->yh + a->rows - 1) / a->rows, strips = (a->n + a->images - 1) / a->images * upright;
  #pragma omp parallel num_threads(a->threads) if (a->threads > 1)
  {
    #pragma omp for schedule(static)
    for (int64_t i = 0; i < (a->work == 2 ? 0 : groups * a->in); i++)
      NAME_arrange(a, w, i / a->in * NV, i % a->in, arranged + i * TAPS * LX * NV * L);
    #pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < (a->work == 1 ? 0 : groups * strips); i++) {
      const int64_t n = i % strips / upright * a->images, top = i % upright * a->rows;
      NAME_strip(a, sets, slots, i / strips * NV, n, n + a->images < a->n ? n + a->images : a->n,
                 top, top + a->rows < a->yh ? top + a->rows : a->yh);
    }
  }
  return 0;
}
#pragma clang fp contract(off)
