/* The gradient for the weights.

   The argument block: `_WeightBlocking.sizes` of `winograd.py`; blocks of inputs and of outputs
   of a panel, or 0; places of dy, x, dw and scratch memory. */
typedef struct {
  NAME_images x, dy;
  NAME_tiles z;
  float *w;
  int32_t *marks; /* of all tiles */
} NAME_job;
/* Add the gradient of a tile directly: of a block of outputs at one input. */
MG_CONTRACT void NAME_direct(const NAME_job *q, int64_t tile, int64_t k, int64_t c, vec *taps) {
  NAME_patch from, to;
  NAME_locate(&q->x, &q->z, tile, SIDE, 1, &from);
  NAME_locate(&q->dy, &q->z, tile, TILE, 1, &to);
  const vec *x = q->x.pixels + c / L * q->x.h * q->x.w, *dy = q->dy.pixels + k * q->dy.h * q->dy.w;
  for (int64_t p = 0; p < TILE * TILE; p++) {
    const int64_t result = to.rows[p / TILE] + to.columns[p % TILE];
    if (result < 0) continue;
    for (int64_t i = 0; i < TAPS; i++) {
      const int64_t offset = from.rows[p / TILE + i / WINDOW] + from.columns[p % TILE + i % WINDOW];
      if (offset >= 0) taps[i] += x[offset][c % L] * dy[result];
    }
  }
}
/* Transform the pixels of a tile; return whether its gradient has to be added directly. */
MG_CONTRACT int NAME_prepare_tile(const NAME_job *q, int64_t tile, vec *v, int64_t v_stride, vec *d,
                                  int64_t d_stride) {
  NAME_patch x, dy;
  NAME_locate(&q->x, &q->z, tile, SIDE, 0, &x);
  NAME_locate(&q->dy, &q->z, tile, TILE, 0, &dy);
  const int uniform = !NAME_transform_input(&q->x, &x, q->z.capacity, v, v_stride);
  NAME_transform_result(&q->dy, &dy, q->z.capacity, d, d_stride);
  q->marks[tile] = 0;
  if (uniform) return 0;
  NAME_locate(&q->x, &q->z, tile, SIDE, 1, &x);
  NAME_locate(&q->dy, &q->z, tile, TILE, 1, &dy);
  if (!NAME_compare_magnitudes(&q->x, &x, &dy, WINDOW, TILE, 0)) return 0;
  for (int64_t p = 0; p < POINTS; p++)
    for (int64_t k = 0; k < q->dy.blocks; k++) d[p * d_stride + k * q->z.capacity] = (vec){0};
  q->marks[tile] = 1;
  return 1;
}
/* Transform points to the taps of a block of outputs at one input; add the `sums` of all threads. */
MG_CONTRACT void NAME_finish_taps(const NAME_job *q, int64_t tiles, int mixed, int64_t k, int64_t c,
                                  const vec *g, int64_t point_stride, int64_t sums) {
  vec points[POINTS] MG_ALIGNED, half[WINDOW * SIDE] MG_ALIGNED, taps[TAPS] MG_ALIGNED, zeros = {0};
  for (int64_t p = 0; p < POINTS; p++) {
    points[p] = g[p * point_stride];
    for (int64_t s = 1; s < sums; s++) points[p] += g[(s * POINTS + p) * point_stride];
  }
  for (int64_t j = 0; j < SIDE; j++) NAME_kernel(points + j, SIDE, half + j, SIDE);
  for (int64_t i = 0; i < WINDOW; i++) NAME_kernel(half + i * SIDE, 1, taps + WINDOW * i, 1);
  for (int64_t i = 0; i < TAPS; i++) zeros += taps[i] * 0;
  const int finite = NAME_finite(zeros);
  if (!finite) memset(taps, 0, sizeof taps);
  if (!finite || mixed)
    for (int64_t t = 0; t < tiles; t++)
      if (!finite || q->marks[t]) NAME_direct(q, t, k, c, taps);
  for (int64_t l = 0; l < L; l++)
    for (int64_t i = 0; i < TAPS; i++)
      q->w[((k * L + l) * q->x.blocks * L + c) * TAPS + i] = taps[i][l];
}
/* Add the tiles of a strip to the sums g, in `thread` of `team`, which share them.

   Return the number of marked tiles in this thread's share. */
MG_CONTRACT int NAME_strip(const NAME_job *q, int64_t begin, int64_t count, vec *v, vec *g, int accumulate,
                           int64_t thread, int64_t team) {
  const int64_t in = q->x.blocks, out = q->dy.blocks, capacity = q->z.capacity;
  const int64_t v_stride = in * capacity + 1, d_stride = out * capacity + 1, g_stride = in * L * out + 1;
  vec *d = v + POINTS * v_stride;
  int mixed = 0;
  for (MG_SHARE(t, count)) mixed += NAME_prepare_tile(q, begin + t, v + t, v_stride, d + t, d_stride);
  MG_WAIT
  for (MG_SHARE(i, POINTS * in)) {
    const int64_t p = i / in, b = i % in;
    for (int64_t k = 0; k < out; k += NV)
      for (int64_t r = 0; r < L; r += R)
        NAME_products(count, capacity, (float *)(v + p * v_stride + b * capacity) + r,
                      d + p * d_stride + k * capacity, g + p * g_stride + (b * L + r) * out + k, out,
                      accumulate);
  }
  MG_WAIT
  return mixed;
}
/* Compute the gradient of `outs` blocks of outputs from k on, at `ins` blocks of inputs from b on.

   v, d  points of all tiles
   g     memory for the points of the gradient */
MG_CONTRACT void NAME_panel(const NAME_job *q, int64_t tiles, int mixed, const vec *v, const vec *d,
                            int64_t b, int64_t ins, int64_t k, int64_t outs, vec *g) {
  const int64_t in = q->x.blocks, out = q->dy.blocks, capacity = q->z.capacity;
  const int64_t v_stride = in * capacity + 1, d_stride = out * capacity + 1, g_stride = ins * L * outs + 1;
  for (int64_t p = 0; p < POINTS; p++)
    for (int64_t i = 0; i < ins; i++)
      for (int64_t o = 0; o < outs; o += NV)
        for (int64_t r = 0; r < L; r += R)
          NAME_products(tiles, capacity, (float *)(v + p * v_stride + (b + i) * capacity) + r,
                        d + p * d_stride + (k + o) * capacity,
                        g + p * g_stride + (i * L + r) * outs + o, outs, 0);
  for (int64_t o = 0; o < outs; o++)
    for (int64_t c = 0; c < ins * L; c++)
      NAME_finish_taps(q, tiles, mixed, k + o, b * L + c, g + c * outs + o, g_stride, 1);
}
/* Accumulate strips of tiles at all points, in sums of each thread, or shared ones. */
MG_CONTRACT void NAME_strips(const NAME_job *q, int64_t tiles, int shared, vec *sums, int *mixed) {
  const int64_t in = q->x.blocks, out = q->dy.blocks, capacity = q->z.capacity;
  const int64_t thread = omp_get_thread_num(), all = omp_get_num_threads();
  const int64_t g_stride = in * L * out + 1, strips = (tiles + capacity - 1) / capacity;
  vec *memory = sums + (shared ? 1 : all) * POINTS * g_stride;
  int64_t first = 0, last = strips;
  if (!shared) {
    first = thread * strips / all;
    last = (thread + 1) * strips / all;
    memory += thread * POINTS * ((in + out) * capacity + 2);
  }
  vec *g = sums + (shared ? 0 : thread) * POINTS * g_stride;
  for (int64_t s = first; s < last; s++) {
    const int64_t count = tiles - s * capacity < capacity ? tiles - s * capacity : capacity;
    const int64_t member = shared ? thread : 0, team = shared ? all : 1;
    if (NAME_strip(q, s * capacity, count, memory, g, s > first, member, team)) {
      #pragma omp atomic write
      *mixed = 1;
    }
  }
  #pragma omp barrier
  #pragma omp for schedule(static)
  for (int64_t i = 0; i < in * L * out; i++)
    NAME_finish_taps(q, tiles, *mixed, i % out, i / out, sums + i, g_stride, shared ? 1 : all);
}
/* Compute panels of `ins` blocks of inputs and `outs` of outputs, each over all tiles. */
MG_CONTRACT void NAME_panels(const NAME_job *q, int64_t tiles, int64_t ins, int64_t outs, vec *v,
                             int *mixed) {
  const int64_t in = q->x.blocks, out = q->dy.blocks, capacity = q->z.capacity;
  const int64_t v_stride = in * capacity + 1, d_stride = out * capacity + 1;
  vec *d = v + POINTS * v_stride;
  vec *thread_memory = d + POINTS * (d_stride + omp_get_thread_num() * (ins * L * outs + 1));
  #pragma omp for schedule(static)
  for (int64_t t = 0; t < tiles; t++)
    if (NAME_prepare_tile(q, t, v + t, v_stride, d + t, d_stride)) {
      #pragma omp atomic write
      *mixed = 1;
    }
  const int64_t across = (out + outs - 1) / outs, panels = (in + ins - 1) / ins * across;
  #pragma omp for schedule(dynamic)
  for (int64_t i = 0; i < panels; i++) {
    const int64_t b = i / across * ins, k = i % across * outs;
    NAME_panel(q, tiles, *mixed, v, d, b, in - b < ins ? in - b : ins,
               k, out - k < outs ? out - k : outs, thread_memory);
  }
}
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], shared = a[1], capacity = a[2], tiles = a[9], in = a[10], out = a[11];
  const int64_t ins = a[18], outs = a[19];
  const int64_t *place = a + 20;
  const NAME_job q = {
    {(vec *)(slots[place[2]] + place[3]), in, a[12], a[13], a[16], a[17]},
    {(vec *)(slots[place[0]] + place[1]), out, a[14], a[15], 0, 0},
    {a[3], a[4], a[5], a[6], a[7], a[8], capacity},
    (float *)(slots[place[4]] + place[5]),
    (int32_t *)(slots[place[6]] + place[7]),
  };
  vec *memory = (vec *)q.marks + (tiles + L - 1) / L;
  int mixed = 0;
  #pragma omp parallel num_threads(threads) if (threads > 1)
  if (ins) NAME_panels(&q, tiles, ins, outs, memory, &mixed);
  else NAME_strips(&q, tiles, shared, memory, &mixed);
  return 0;
}
#pragma clang fp contract(off)
