/* A convolution, or the gradient for its images.

   The argument block: `_ImageBlocking.sizes` of `winograd.py`; the weights' offset, and their
   strides in floats along outputs, inputs and taps; whether there is a bias; then the words that `prepacked.py`
   adds, where "other memory" is that of strips.

   TAIL  tiles of NAME_products_tail, which computes the rest of NAME_products_rows */
typedef struct {
  NAME_images x, y;
  NAME_tiles z;
  const float *w, *bias;
  int64_t out, in, tap; /* strides of w */
  const vec *u; /* transformed weights, or 0 */
  int64_t chunk; /* blocks of inputs */
} NAME_job;
/* Transform the weights of a block of outputs at one input. */
MG_CONTRACT void NAME_transform_weights(const NAME_job *q, int64_t k, int64_t c, vec *u,
                                        int64_t point_stride) {
  const float *w = q->w + k * L * q->out + c * q->in;
  vec taps[TAPS] MG_ALIGNED, half[WINDOW * SIDE] MG_ALIGNED;
  for (int64_t l = 0; l < L; l++)
    for (int64_t i = 0; i < TAPS; i++) ((float *)taps)[i * L + l] = w[l * q->out + i * q->tap];
  for (int64_t j = 0; j < WINDOW; j++) NAME_kernel(taps + j, WINDOW, half + j, WINDOW);
  for (int64_t i = 0; i < SIDE; i++)
    NAME_kernel(half + WINDOW * i, 1, u + i * SIDE * point_stride, point_stride);
}
/* Compute a tile of a block of outputs directly. */
MG_CONTRACT void NAME_direct(const NAME_job *q, int64_t tile, int64_t k, vec *y) {
  NAME_patch patch;
  NAME_locate(&q->x, &q->z, tile, SIDE, 1, &patch);
  for (int64_t b = 0; b < q->x.blocks; b++) {
    const vec *x = q->x.pixels + b * q->x.h * q->x.w;
    for (int64_t l = 0; l < L; l++)
      for (int64_t i = 0; i < TAPS; i++) {
        const float *w = q->w + (b * L + l) * q->in + i * q->tap + k * L * q->out;
        vec tap;
        for (int64_t o = 0; o < L; o++) tap[o] = w[o * q->out];
        for (int64_t p = 0; p < TILE * TILE; p++) {
          const int64_t offset = patch.rows[p / TILE + i / WINDOW] + patch.columns[p % TILE + i % WINDOW];
          if (offset >= 0) y[p] += x[offset][l] * tap;
        }
      }
  }
}
/* Transform the pixels of a tile; return its mark, the result of NAME_compare_magnitudes. */
MG_CONTRACT int32_t NAME_prepare_tile(const NAME_job *q, int64_t tile, vec *v, int64_t point_stride) {
  NAME_patch x, y;
  NAME_locate(&q->x, &q->z, tile, SIDE, 0, &x);
  if (!NAME_transform_input(&q->x, &x, q->z.capacity, v, point_stride)) return 0;
  NAME_locate(&q->x, &q->z, tile, SIDE, 1, &x);
  NAME_locate(&q->y, &q->z, tile, TILE, 1, &y);
  return NAME_compare_magnitudes(&q->x, &x, &y, TILE, WINDOW, 1);
}
/* Transform points m to the pixels of some blocks of outputs. */
MG_CONTRACT void NAME_finish_tile(const NAME_job *q, int64_t tile, int32_t mark, int64_t first,
                                  int64_t last, const vec *m, int64_t point_stride) {
  NAME_patch patch;
  NAME_locate(&q->y, &q->z, tile, TILE, 0, &patch);
  const int64_t block = q->y.h * q->y.w;
  vec *y = q->y.pixels + first * block;
  for (int64_t k = first; k < last; k++, m += q->z.capacity, y += block) {
    vec half[TILE * SIDE] MG_ALIGNED, pixels[TILE * TILE] MG_ALIGNED, zeros = {0};
    for (int64_t j = 0; j < SIDE; j++)
      NAME_output(m + j * point_stride, SIDE * point_stride, half + j, SIDE);
    for (int64_t i = 0; i < TILE; i++) NAME_output(half + i * SIDE, 1, pixels + i * TILE, 1);
    for (int64_t p = 0; p < TILE * TILE; p++) zeros += pixels[p] * 0;
    if (mark == MG_MIXED || !NAME_finite(zeros)) {
      memset(pixels, 0, sizeof pixels);
      NAME_direct(q, tile, k, pixels);
    } else if (mark) {
      for (int64_t p = 0; p < TILE * TILE; p++)
        if (mark >> p & 1) pixels[p] = (vec){0};
    }
    const int64_t next = k + 1 < last ? block : TILE - (k - first) * block;
    NAME_prefetch(y + patch.corner + next, q->y.w, TILE, 1);
    const vec bias = q->bias ? ((const vec *)q->bias)[k] : (vec){0};
    for (int64_t p = 0; p < TILE * TILE; p++) {
      const int64_t offset = patch.whole ? patch.corner + p / TILE * q->y.w + p % TILE
                                         : patch.rows[p / TILE] + patch.columns[p % TILE];
      if (offset >= 0) y[offset] = pixels[p] + bias;
    }
  }
}
/* Multiply the points of `count` tiles by those of weights, of `in` blocks of inputs and NV of outputs. */
MG_CONTRACT void NAME_multiply(int64_t in, int64_t count, int64_t capacity, const vec *v, const vec *u,
                               vec *m, int accumulate) {
  int64_t t = 0;
  for (; t + R <= count; t += R) NAME_products_rows(in, capacity, v + t, u, m + t, accumulate);
  /* Sums beyond the last tile are garbage that nothing reads; the capacity is a multiple of TAIL. */
  for (; t < count; t += TAIL) NAME_products_tail(in, capacity, v + t, u, m + t, accumulate);
}
/* Compute a strip in one thread. */
MG_CONTRACT void NAME_strip(const NAME_job *q, int64_t begin, int64_t count, vec *v) {
  const int64_t in = q->x.blocks, out = q->y.blocks, capacity = q->z.capacity;
  const int64_t v_stride = in * capacity + 1, m_stride = out * capacity + 1, u_stride = in * L * out + 1;
  int32_t *marks = (int32_t *)v; /* of the tiles of the strip */
  v += (capacity + L - 1) / L;
  vec *m = v + POINTS * v_stride;
  for (int64_t t = 0; t < count; t++) marks[t] = NAME_prepare_tile(q, begin + t, v + t, v_stride);
  for (int64_t p = 0; p < POINTS; p++)
    for (int64_t k = 0; k < out; k += NV)
      NAME_multiply(in, count, capacity, v + p * v_stride, q->u + p * u_stride + k * in * L,
                    m + p * m_stride + k * capacity, 0);
  for (int64_t t = 0; t < count; t++) NAME_finish_tile(q, begin + t, marks[t], 0, out, m + t, m_stride);
}
/* Compute NV blocks of outputs, from block k on, for `count` tiles of a strip, from `first` on.

   v       points of the strip's tiles, which begin at tile `begin`
   marks   of the strip's tiles
   memory  of this thread: points of outputs, then of weights unless q->u has them

   Weights are transformed for a chunk of inputs at a time, and used while they are in the cache. */
MG_CONTRACT void NAME_panel(const NAME_job *q, int64_t begin, const int32_t *marks, const vec *v,
                            int64_t k, int64_t first, int64_t count, vec *memory) {
  const int64_t in = q->x.blocks, capacity = q->z.capacity;
  const int64_t v_stride = in * capacity + 1, m_stride = NV * capacity + 1;
  vec *chunk_weights = memory + POINTS * m_stride;
  for (int64_t b = 0; b < in; b += q->chunk) {
    const int64_t chunk = in - b < q->chunk ? in - b : q->chunk;
    const vec *u = chunk_weights;
    int64_t u_stride = q->chunk * L * NV + 1;
    if (q->u) {
      u_stride = in * L * q->y.blocks + 1;
      u = q->u + (k * in + b * NV) * L;
    } else {
      for (int64_t c = 0; c < chunk * L; c++)
        for (int64_t j = 0; j < NV; j++)
          NAME_transform_weights(q, k + j, b * L + c, chunk_weights + c * NV + j, u_stride);
    }
    for (int64_t p = 0; p < POINTS; p++)
      NAME_multiply(chunk, count, capacity, v + p * v_stride + b * capacity + first, u + p * u_stride,
                    memory + p * m_stride + first, b > 0);
  }
  for (int64_t t = first; t < first + count; t++)
    NAME_finish_tile(q, begin + t, marks[t], k, k + NV, memory + t, m_stride);
}
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], chunk = a[1], capacity = a[2], in = a[10], out = a[11];
  const int64_t *place = a + 24, mode = a[23], tiles = a[9];
  vec *u = mode == 3 ? 0 : (vec *)(slots[place[10]] + place[11]);
  const NAME_job q = {
    {(vec *)(slots[place[0]] + place[1]), in, a[12], a[13], a[16], a[17]},
    {(vec *)(slots[place[6]] + place[7]), out, a[14], a[15], 0, 0},
    {a[3], a[4], a[5], a[6], a[7], a[8], capacity},
    (const float *)(slots[place[2]] + place[3]) + a[18],
    a[22] ? (const float *)(slots[place[4]] + place[5]) : 0,
    a[19], a[20], a[21], u, chunk,
  };
  const int64_t u_stride = in * L * out + 1;
  vec *memory = (vec *)(slots[place[8]] + place[9]);
  #pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const int64_t thread = omp_get_thread_num();
    #pragma omp for schedule(static)
    for (int64_t i = 0; i < (mode > 1 ? 0 : out * in * L); i++) {
      const int64_t k = i / (in * L), c = i % (in * L);
      NAME_transform_weights(&q, k, c, u + (k / NV * in * L + c) * NV + k % NV, u_stride);
    }
    if (mode == 1) { /* pack weights only */
    } else if (chunk) {
      int32_t *marks = (int32_t *)memory;
      vec *v = memory + (capacity + L - 1) / L;
      const int64_t v_stride = in * capacity + 1, m_stride = NV * capacity + 1;
      vec *thread_memory = v + POINTS * (v_stride + thread * (m_stride + (u ? 0 : chunk * L * NV + 1)));
      /* If there are fewer panels than threads, threads share the tiles of a panel. */
      const int64_t panels = out / NV, parts = (threads + panels - 1) / panels;
      for (int64_t b = 0; b < tiles; b += capacity) {
        const int64_t count = tiles - b < capacity ? tiles - b : capacity;
        const int64_t part = (count + parts * R - 1) / (parts * R) * R;
        #pragma omp for schedule(static)
        for (int64_t t = 0; t < count; t++) marks[t] = NAME_prepare_tile(&q, b + t, v + t, v_stride);
        #pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < panels * parts; i++) {
          const int64_t first = i % parts * part;
          if (first < count)
            NAME_panel(&q, b, marks, v, i / parts * NV, first,
                       count - first < part ? count - first : part, thread_memory);
        }
      }
    } else {
      const int64_t marks = (capacity + L - 1) / L;
      vec *thread_memory = memory + thread * (POINTS * ((in + out) * capacity + 2) + marks);
      #pragma omp for schedule(dynamic)
      for (int64_t b = 0; b < tiles; b += capacity)
        NAME_strip(&q, b, tiles - b < capacity ? tiles - b : capacity, thread_memory);
    }
  }
  return 0;
}
#pragma clang fp contract(off)
