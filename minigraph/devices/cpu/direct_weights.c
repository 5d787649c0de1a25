/* The gradient for the weights of a convolution: for each tap a sum of outer products, in registers.

   A task is NV blocks of outputs and some blocks of inputs, in a part of the images.  It runs over the
   images in strips of rows that fit the first cache.  If the convolution is depthwise, each block of
   outputs has one block of inputs, and products are those of the same lanes.

   The argument block is NAME_block.

   DEPTH   whether the convolution is depthwise
   L       lanes: channels of a block of dy
   LX      numbers of a pixel of x that are multiplied by dy: the L channels of a block, or 1 if images
           are in nchw; 1 vector of L channels if the convolution is depthwise
   XT      type of these numbers
   NV      blocks of outputs whose sums are in registers
   R       sums for each of them: channels of a block of x, or in nchw taps of a row
   TAPS_H  rows of the window; TAPS_W taps of a row */
#pragma clang fp contract(fast)
#define TAPS (TAPS_H * TAPS_W)
typedef float NAME_vec __attribute__((vector_size(L * 4), aligned(4), may_alias));
typedef struct {
  int64_t n, in, out, xh, xw, yh, yw;     /* images; blocks of x and dy; height and width of both */
  int64_t pad[2], stride[2], dilation[2]; /* of rows, of columns */
  int64_t w_out, w_in, w_tap, w_first;    /* strides of the weights, and place of the first, in floats */
  int64_t ins, parts, rows; /* blocks of x of a task; parts of the images; rows of a strip */
  int64_t threads;
  int64_t dy[2], x[2], dw[2], sums[2];
} NAME_block;
typedef struct { int64_t begin, end; } NAME_range;
PRODUCTS
/* Return which pixels of a range of dy meet a pixel of x at a tap. */
MG_CONTRACT NAME_range NAME_meeting(NAME_range r, int64_t tap, int64_t dilation, int64_t stride,
                                    int64_t pad, int64_t size) {
  const int64_t before = pad - tap * dilation, last = size - 1 + before; /* i meets i * stride - before */
  const int64_t begin = before > 0 ? (before + stride - 1) / stride : 0;
  const int64_t end = last < 0 ? 0 : last / stride + 1;
  if (r.begin < begin) r.begin = begin;
  if (r.end > end) r.end = end;
  return r;
}
typedef struct { /* a strip: its image in x and dy, and its rows that meet a row of taps */
  const NAME_block *a;
  const XT *x;
  const vec *dy;
  NAME_range rows;
  int64_t tap; /* the row of taps */
} NAME_strip;
/* Add the products of dy at a range of pixels with x at tap s and the R - 1 taps, or lanes, after it. */
MG_CONTRACT void NAME_add(const NAME_strip *q, NAME_range columns, int64_t s, int64_t lane, int64_t skip,
                          int single, vec *g) {
  const NAME_block *a = q->a;
  if (q->rows.begin >= q->rows.end || columns.begin >= columns.end) return;
  const int64_t row = q->rows.begin * a->stride[0] - a->pad[0] + q->tap * a->dilation[0];
  const int64_t column = columns.begin * a->stride[1] - a->pad[1] + s * a->dilation[1];
  const XT *x = q->x + (row * a->xw + column) * LX + lane;
  const vec *dy = q->dy + q->rows.begin * a->yw + columns.begin;
  const int64_t rows = q->rows.end - q->rows.begin, count = columns.end - columns.begin;
  const int64_t x_row = a->stride[0] * a->xw * LX, x_pixel = a->stride[1] * LX, dy_block = a->yh * a->yw;
  if (single) NAME_products_1(rows, count, x, x_row, x_pixel, dy, a->yw, dy_block, 0, g);
  else NAME_products_R(rows, count, x, x_row, x_pixel, dy, a->yw, dy_block, skip, g);
}
/* Add a strip to the sums g[tap][lane][block of outputs] of one block of inputs. */
MG_CONTRACT void NAME_taps(const NAME_block *a, const XT *x, const vec *dy, int64_t top, int64_t bottom,
                           vec *g) {
  const NAME_range all = {0, a->yw};
  for (int64_t r = 0; r < TAPS_H; r++) {
    const NAME_range rows = {top, bottom};
    const NAME_strip q = {a, x, dy,
                          NAME_meeting(rows, r, a->dilation[0], a->stride[0], a->pad[0], a->xh), r};
    vec *sums = g + r * TAPS_W * LX * NV;
#if LX > 1
    for (int64_t s = 0; s < TAPS_W; s++) {
      const NAME_range columns = NAME_meeting(all, s, a->dilation[1], a->stride[1], a->pad[1], a->xw);
      for (int64_t l = 0; l < LX; l += R) NAME_add(&q, columns, s, l, 0, 0, sums + (s * LX + l) * NV);
    }
#else
    /* R taps at once for the pixels that meet all of them; single taps for the others.  The last R taps
       may overlap those before. */
    for (int64_t done = 0; done < TAPS_W; done += R) {
      const int64_t s = done + R <= TAPS_W ? done : TAPS_W - R;
      NAME_range common = all;
      for (int64_t t = s; t < s + R; t++)
        common = NAME_meeting(common, t, a->dilation[1], a->stride[1], a->pad[1], a->xw);
      if (common.end < common.begin) common.end = common.begin;
      NAME_add(&q, common, s, 0, done - s, 0, sums + s * NV);
      for (int64_t t = done; t < s + R; t++) {
        const NAME_range pixels = NAME_meeting(all, t, a->dilation[1], a->stride[1], a->pad[1], a->xw);
        const NAME_range left = {pixels.begin, pixels.end < common.begin ? pixels.end : common.begin};
        const NAME_range right = {pixels.begin > common.end ? pixels.begin : common.end, pixels.end};
        NAME_add(&q, left, t, 0, 0, 1, sums + t * NV);
        NAME_add(&q, right, t, 0, 0, 1, sums + t * NV);
      }
    }
#endif
  }
}
/* Sum NV blocks of outputs from k on and `ins` blocks of inputs from b on over images `first` to
   `last`. */
MG_CONTRACT void NAME_task(const NAME_block *a, char **slots, int64_t k, int64_t b, int64_t ins,
                           int64_t first, int64_t last, vec *g) {
  const XT *x = (const XT *)(slots[a->x[0]] + a->x[1]);
  const vec *dy = (const vec *)(slots[a->dy[0]] + a->dy[1]);
  memset(g, 0, ins * TAPS * LX * NV * sizeof *g);
  for (int64_t n = first; n < last; n++)
    for (int64_t top = 0; top < a->yh; top += a->rows) {
      const int64_t bottom = top + a->rows < a->yh ? top + a->rows : a->yh;
      for (int64_t i = 0; i < ins; i++)
        NAME_taps(a, x + (DEPTH ? n * a->out + k : n * a->in + b + i) * a->xh * a->xw * LX,
                  dy + (n * a->out + k) * a->yh * a->yw, top, bottom, g + i * TAPS * LX * NV);
    }
}
/* Add the sums of all parts, and store them as weights: NV blocks of outputs, one block of inputs. */
MG_CONTRACT void NAME_store(const NAME_block *a, int64_t k, int64_t b, vec *g, int64_t part_size,
                            float *dw) {
  for (int64_t p = 1; p < a->parts; p++)
    for (int64_t i = 0; i < TAPS * LX * NV; i++) g[i] += g[p * part_size + i];
  const float *from = (const float *)g;
  dw += a->w_first + k * L * a->w_out + b * LX * a->w_in;
  for (int64_t o = 0; o < NV * L; o++)
    for (int64_t l = 0; l < LX; l++)
      for (int64_t t = 0; t < TAPS; t++)
        dw[o * a->w_out + l * a->w_in + t * a->w_tap] = from[(t * LX + l) * NV * L + o];
}
int NAME(const int64_t *words, char **slots) {
  const NAME_block *a = (const NAME_block *)words;
  float *dw = (float *)(slots[a->dw[0]] + a->dw[1]);
  vec *sums = (vec *)(slots[a->sums[0]] + a->sums[1]);
  const int64_t groups = a->out / NV, in_tasks = (a->in + a->ins - 1) / a->ins;
  const int64_t sums_size = TAPS * LX * NV, part_size = groups * a->in * sums_size;
  #pragma omp parallel num_threads(a->threads) if (a->threads > 1)
  {
    #pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < a->parts * groups * in_tasks; i++) {
      const int64_t p = i / (groups * in_tasks), k = i / in_tasks % groups, b = i % in_tasks * a->ins;
      NAME_task(a, slots, k * NV, b, a->in - b < a->ins ? a->in - b : a->ins, p * a->n / a->parts,
                (p + 1) * a->n / a->parts, sums + p * part_size + (k * a->in + b) * sums_size);
    }
    #pragma omp for schedule(static)
    for (int64_t i = 0; i < groups * a->in; i++)
      NAME_store(a, i / a->in * NV, i % a->in, sums + i * sums_size, part_size, dw);
  }
  return 0;
}
#undef TAPS
#pragma clang fp contract(off)
