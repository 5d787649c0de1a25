/* A direct convolution, or the gradient for its input: sums over taps, in registers.

   A set is the pixels of y along an axis that meet the same taps, so padding is neither read nor
   multiplied.  Consecutive pixels of a set are a constant distance apart, in y and in x.

   The argument block is NAME_block, then the sets of rows and the sets of columns.  Vectors of outputs,
   and the packed weights at them, are in groups of NV; a task is a strip of images and rows of y for a
   group.

   Few outputs are in nchw.  Their sums are vectors, too, with a lane for each channel of a block of x;
   the lanes are added at the end (DOT).

   DOT     whether outputs are in nchw
   L       lanes of a vector: channels of a block of y, or of x if DOT
   LX      numbers of a pixel of x that are multiplied by weights: the L channels of a block, or 1 if
           images are in nchw; 1 vector of L channels if DOT
   XT, YT  types of these numbers, and of an output: float or vec
   LY, LI  channels of an output, and of a block of x
   NV      outputs whose sums are in registers
   TAPS    taps of a window, TAPS_W of a row
   LINE    statements that compute the pixels t to `count` of a line */
#pragma clang fp contract(fast)
typedef float NAME_vec __attribute__((vector_size(L * 4), aligned(4), may_alias));
typedef struct {
  int64_t y_first, y_step, size; /* pixels of y: first, distance, number */
  int64_t tap, tap_step, taps;   /* taps: first, distance, number */
  int64_t x_first, x_tap_step;   /* in x: of the first pixel and tap; distance between taps */
} NAME_set;
typedef struct {
  int64_t n, in, out, xh, xw, yh, yw; /* images; blocks of x; outputs; height and width of x and y */
  int64_t w_out, w_in, w_tap;         /* strides of the weights, in floats */
  int64_t has_bias;
  int64_t chunk;                      /* blocks of x whose packed weights are used at once */
  int64_t images, rows;               /* of a strip of y */
  int64_t x_step_h, x_step_w;         /* distance in x of consecutive pixels of a set */
  int64_t sets_h, sets_w, threads;
  int64_t mode;                       /* see `prepacked_kernel` */
  int64_t x[2], w[2], bias[2], y[2], unused[2], packed[2];
} NAME_block;
typedef struct { /* the sum for each pixel; strides in floats of x and vectors of packed w and y */
  int64_t blocks, x_block, taps_h, x_tap_h, w_tap_h, taps_w, x_tap_w, w_tap_w;
  int64_t x_pixel, y_pixel; /* between pixels of a line */
  int64_t y_block;
  const YT *bias; /* or 0, to add to the sums that y has already */
} NAME_sums;
#if DOT
/* Add the lanes in halves; compilers add the elements of an array one by one. */
MG_CONTRACT inline __attribute__((always_inline)) float NAME_total(vec s) {
  typedef float quad __attribute__((vector_size(16)));
  quad part[L / 4];
  memcpy(part, &s, sizeof s);
  for (int n = L / 8; n; n /= 2)
    for (int k = 0; k < n; k++) part[k] += part[n + k];
  return part[0][0] + part[0][2] + (part[0][1] + part[0][3]);
}
#else
#define NAME_total(s) (s)
#endif
PRODUCTS
/* Compute `count` consecutive pixels of a set along one axis. */
MG_CONTRACT void NAME_line(const NAME_sums *q, int64_t count, const XT *x, const vec *w, YT *y) {
  int64_t t = 0;
  LINE
}
/* Return the part of a set in pixels `begin` to `end` of y; x_step is the distance of pixels in x. */
MG_CONTRACT NAME_set NAME_clip(NAME_set s, int64_t x_step, int64_t begin, int64_t end) {
  const int64_t skipped = s.y_first < begin ? (begin - s.y_first + s.y_step - 1) / s.y_step : 0;
  const int64_t reached = s.y_first < end ? (end - s.y_first + s.y_step - 1) / s.y_step : 0;
  s.size = (reached < s.size ? reached : s.size) - skipped;
  s.y_first += skipped * s.y_step;
  s.x_first += skipped * x_step;
  return s;
}
/* Compute NV outputs of the pixels of a set of rows and a set of columns of an image. */
MG_CONTRACT void NAME_sets(const NAME_block *a, NAME_sums q, const NAME_set *r, const NAME_set *c,
                           const XT *x, const vec *w, YT *y) {
  q.taps_h = r->taps;
  q.x_tap_h = r->x_tap_step * a->xw * LX;
  q.w_tap_h = r->tap_step * TAPS_W * LX * NV;
  q.taps_w = c->taps;
  q.x_tap_w = c->x_tap_step * LX;
  q.w_tap_w = c->tap_step * LX * NV;
  x += (r->x_first * a->xw + c->x_first) * LX;
  w += (r->tap * TAPS_W + c->tap) * LX * NV;
  y += r->y_first * a->yw + c->y_first;
  const int64_t x_row = a->x_step_h * a->xw * LX, x_column = a->x_step_w * LX;
  const int64_t y_row = r->y_step * a->yw, y_column = c->y_step;
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
/* Compute NV outputs from k on, in rows `top` to `bottom` of the images `first` to `last`. */
MG_CONTRACT void NAME_strip(const NAME_block *a, const NAME_set *sets, char **slots, int64_t k,
                            int64_t first, int64_t last, int64_t top, int64_t bottom) {
  const XT *x = (const XT *)(slots[a->x[0]] + a->x[1]);
  const vec *w = (const vec *)(slots[a->packed[0]] + a->packed[1]) + k * a->in * TAPS * LX;
  YT *y = (YT *)(slots[a->y[0]] + a->y[1]);
  static const YT zero_bias[NV];
  const YT *bias = a->has_bias ? (const YT *)(slots[a->bias[0]] + a->bias[1]) + k : zero_bias;
  NAME_sums q = {0};
  q.x_block = a->xh * a->xw * LX;
  q.y_block = a->yh * a->yw;
  for (int64_t b = 0; b < a->in; b += a->chunk) {
    q.blocks = a->in - b < a->chunk ? a->in - b : a->chunk;
    q.bias = b ? 0 : bias;
    for (int64_t n = first; n < last; n++)
      for (int64_t i = 0; i < a->sets_h; i++) {
        const NAME_set r = NAME_clip(sets[i], a->x_step_h, top, bottom);
        if (r.size > 0)
          for (int64_t j = 0; j < a->sets_w; j++)
            NAME_sets(a, q, &r, sets + a->sets_h + j, x + (n * a->in + b) * q.x_block,
                        w + b * TAPS * LX * NV, y + (n * a->out + k) * q.y_block);
      }
  }
}
/* Pack the weights of NV outputs, from k on, and one block of inputs. */
MG_CONTRACT void NAME_pack(const NAME_block *a, const float *w, int64_t k, int64_t b, float *to) {
  w += k * LY * a->w_out + b * LI * a->w_in;
  for (int64_t o = 0; o < NV * LY; o++)
    for (int64_t l = 0; l < LI; l++)
      for (int64_t t = 0; t < TAPS; t++)
        to[DOT ? (t * NV + o) * L + l : (t * LX + l) * NV * L + o] =
            w[o * a->w_out + l * a->w_in + t * a->w_tap];
}
int NAME(const int64_t *words, char **slots) {
  const NAME_block *a = (const NAME_block *)words;
  const NAME_set *sets = (const NAME_set *)(a + 1);
  const float *w = (const float *)(slots[a->w[0]] + a->w[1]);
  float *packed = (float *)(slots[a->packed[0]] + a->packed[1]);
  const int64_t groups = a->out / NV;
  const int64_t strips_h = (a->yh + a->rows - 1) / a->rows;
  const int64_t strips = (a->n + a->images - 1) / a->images * strips_h;
  #pragma omp parallel num_threads(a->threads) if (a->threads > 1)
  {
    #pragma omp for schedule(static)
    for (int64_t i = 0; i < (a->mode == 2 ? 0 : groups * a->in); i++)
      NAME_pack(a, w, i / a->in * NV, i % a->in, packed + i * TAPS * LX * NV * L);
    #pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < (a->mode == 1 ? 0 : groups * strips); i++) {
      const int64_t n = i % strips / strips_h * a->images, top = i % strips_h * a->rows;
      NAME_strip(a, sets, slots, i / strips * NV, n, n + a->images < a->n ? n + a->images : a->n,
                 top, top + a->rows < a->yh ? top + a->rows : a->yh);
    }
  }
  return 0;
}
#undef NAME_total
#pragma clang fp contract(off)
