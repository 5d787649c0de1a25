/* The gradient for the weights.

   The argument block: `_WeightWork.sizes` of `winograd.py`; padding; blocks of inputs and of outputs of a
   panel, or 0; places of dy, x, dw and scratch memory. */
typedef struct {
  NAME_images x, dy;
  NAME_tiles z;
  float *w;
  int32_t *marks; /* of all tiles */
} NAME_job;
/* Add the gradient of a tile directly: of a block of outputs at one input. */
MG_CONTRACT void NAME_direct(const NAME_job *q, int64_t tile, int64_t k, int64_t c, vec *taps) {
  const int64_t image = tile / (q->z.down * q->z.across);
  const int64_t top = tile / q->z.across % q->z.down * TILE, left = tile % q->z.across * TILE;
  const vec *x = q->x.at + (image * q->x.blocks + c / L) * q->x.h * q->x.w;
  const vec *dy = q->dy.at + (image * q->dy.blocks + k) * q->dy.h * q->dy.w;
  for (int64_t p = 0; p < TILE * TILE; p++) {
    const int64_t down = top + p / TILE, across = left + p % TILE;
    if (down >= q->dy.h || across >= q->dy.w) continue;
    for (int64_t i = 0; i < TAPS; i++) {
      const int64_t row = down + i / WINDOW - q->x.top;
      const int64_t column = across + i % WINDOW - q->x.left;
      if (row >= 0 && row < q->x.h && column >= 0 && column < q->x.w)
        taps[i] += x[row * q->x.w + column][c % L] * dy[down * q->dy.w + across];
    }
  }
}
/* Transform the pixels of a tile; return whether its gradient has to be added directly. */
MG_CONTRACT int NAME_begin(const NAME_job *q, int64_t tile, vec *v, int64_t v_gap, vec *d, int64_t d_gap) {
  const int narrow = !NAME_spread_input(&q->x, &q->z, tile, v, v_gap);
  NAME_spread_result(&q->dy, &q->z, tile, d, d_gap);
  q->marks[tile] = 0;
  if (narrow) return 0;
  const int64_t image = tile / (q->z.down * q->z.across);
  const int64_t top = tile / q->z.across % q->z.down * TILE, left = tile % q->z.across * TILE;
  const int64_t high = q->dy.h - top < TILE ? q->dy.h - top : TILE;
  const int64_t wide = q->dy.w - left < TILE ? q->dy.w - left : TILE;
  /* A window here has the pixels that one tap multiplies by dy. */
  if (!NAME_range(&q->x, image, top - q->x.top, left - q->x.left, WINDOW, WINDOW, high, wide)) return 0;
  for (int64_t p = 0; p < POINTS; p++)
    for (int64_t k = 0; k < q->dy.blocks; k++) d[p * d_gap + k * q->z.room] = (vec){0};
  q->marks[tile] = 1;
  return 1;
}
/* Transform points to the taps of a block of outputs at one input; add the `sums` of all threads. */
MG_CONTRACT void NAME_taps(const NAME_job *q, int64_t tiles, int mixed, int64_t k, int64_t c, const vec *g,
                           int64_t gap, int64_t sums) {
  vec points[POINTS] MG_ALIGNED, half[WINDOW * SIDE] MG_ALIGNED, taps[TAPS] MG_ALIGNED, odd = {0};
  for (int64_t p = 0; p < POINTS; p++) {
    points[p] = g[p * gap];
    for (int64_t s = 1; s < sums; s++) points[p] += g[(s * POINTS + p) * gap];
  }
  for (int64_t j = 0; j < SIDE; j++) NAME_kernel(points + j, SIDE, half + j, SIDE);
  for (int64_t i = 0; i < WINDOW; i++) NAME_kernel(half + i * SIDE, 1, taps + WINDOW * i, 1);
  for (int64_t i = 0; i < TAPS; i++) odd += taps[i] * 0;
  const int finite = NAME_finite(odd);
  if (!finite) memset(taps, 0, sizeof taps);
  if (!finite || mixed)
    for (int64_t t = 0; t < tiles; t++)
      if (!finite || q->marks[t]) NAME_direct(q, t, k, c, taps);
  for (int64_t l = 0; l < L; l++)
    for (int64_t i = 0; i < TAPS; i++)
      q->w[((k * L + l) * q->x.blocks * L + c) * TAPS + i] = taps[i][l];
}
/* Add the tiles of a strip to the sums g, in thread `me` of `team`, which share them.

   Return the number of marked tiles in this thread's share. */
MG_CONTRACT int NAME_strip(const NAME_job *q, int64_t begin, int64_t count, vec *v, vec *g, int begun,
                           int64_t me, int64_t team) {
  const int64_t in = q->x.blocks, out = q->dy.blocks, room = q->z.room;
  const int64_t v_gap = in * room + 1, d_gap = out * room + 1, g_gap = in * L * out + 1;
  vec *d = v + POINTS * v_gap;
  int mixed = 0;
  for (MG_SHARE(t, count)) mixed += NAME_begin(q, begin + t, v + t, v_gap, d + t, d_gap);
  MG_WAIT
  for (MG_SHARE(i, POINTS * in)) {
    const int64_t p = i / in, b = i % in;
    for (int64_t k = 0; k < out; k += NV)
      for (int64_t r = 0; r < L; r += R)
        NAME_products(count, room, (float *)(v + p * v_gap + b * room) + r,
                      d + p * d_gap + k * room, g + p * g_gap + (b * L + r) * out + k, out, begun);
  }
  MG_WAIT
  return mixed;
}
/* Compute the gradient of `outs` blocks of outputs from k on, at `ins` blocks of inputs from b on.

   v, d  points of all tiles
   g     memory for the points of the gradient */
MG_CONTRACT void NAME_panel(const NAME_job *q, int64_t tiles, int mixed, const vec *v, const vec *d,
                            int64_t b, int64_t ins, int64_t k, int64_t outs, vec *g) {
  const int64_t in = q->x.blocks, out = q->dy.blocks, room = q->z.room;
  const int64_t v_gap = in * room + 1, d_gap = out * room + 1, g_gap = ins * L * outs + 1;
  for (int64_t p = 0; p < POINTS; p++)
    for (int64_t i = 0; i < ins; i++)
      for (int64_t o = 0; o < outs; o += NV)
        for (int64_t r = 0; r < L; r += R)
          NAME_products(tiles, room, (float *)(v + p * v_gap + (b + i) * room) + r,
                        d + p * d_gap + (k + o) * room, g + p * g_gap + (i * L + r) * outs + o, outs, 0);
  for (int64_t o = 0; o < outs; o++)
    for (int64_t c = 0; c < ins * L; c++)
      NAME_taps(q, tiles, mixed, k + o, b * L + c, g + c * outs + o, g_gap, 1);
}
/* Accumulate strips of tiles at all points, in sums of each thread, or shared ones. */
MG_CONTRACT void NAME_strips(const NAME_job *q, int64_t tiles, int shared, vec *sums, int *mixed) {
  const int64_t in = q->x.blocks, out = q->dy.blocks, room = q->z.room;
  const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
  const int64_t g_gap = in * L * out + 1, strips = (tiles + room - 1) / room;
  vec *memory = sums + (shared ? 1 : all) * POINTS * g_gap;
  int64_t first = 0, last = strips;
  if (!shared) {
    first = me * strips / all;
    last = (me + 1) * strips / all;
    memory += me * POINTS * ((in + out) * room + 2);
  }
  vec *g = sums + (shared ? 0 : me) * POINTS * g_gap;
  for (int64_t s = first; s < last; s++) {
    const int64_t count = tiles - s * room < room ? tiles - s * room : room;
    const int64_t one = shared ? me : 0, team = shared ? all : 1;
    if (NAME_strip(q, s * room, count, memory, g, s > first, one, team)) {
      #pragma omp atomic write
      *mixed = 1;
    }
  }
  #pragma omp barrier
  #pragma omp for schedule(static)
  for (int64_t i = 0; i < in * L * out; i++)
    NAME_taps(q, tiles, *mixed, i % out, i / out, sums + i, g_gap, shared ? 1 : all);
}
/* Compute panels of `ins` blocks of inputs and `outs` of outputs, each over all tiles. */
MG_CONTRACT void NAME_panels(const NAME_job *q, int64_t tiles, int64_t ins, int64_t outs, vec *v,
                             int *mixed) {
  const int64_t in = q->x.blocks, out = q->dy.blocks, room = q->z.room;
  const int64_t v_gap = in * room + 1, d_gap = out * room + 1;
  vec *d = v + POINTS * v_gap;
  vec *own = d + POINTS * (d_gap + omp_get_thread_num() * (ins * L * outs + 1));
  #pragma omp for schedule(static)
  for (int64_t t = 0; t < tiles; t++)
    if (NAME_begin(q, t, v + t, v_gap, d + t, d_gap)) {
      #pragma omp atomic write
      *mixed = 1;
    }
  const int64_t across = (out + outs - 1) / outs, panels = (in + ins - 1) / ins * across;
  #pragma omp for schedule(dynamic)
  for (int64_t i = 0; i < panels; i++) {
    const int64_t b = i / across * ins, k = i % across * outs;
    NAME_panel(q, tiles, *mixed, v, d, b, in - b < ins ? in - b : ins,
               k, out - k < outs ? out - k : outs, own);
  }
}
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], shared = a[1], room = a[2], n = a[3], in = a[4], out = a[5];
  const int64_t ins = a[12], outs = a[13];
  const int64_t *place = a + 14;
  const int64_t down = (a[8] + TILE - 1) / TILE, across = (a[9] + TILE - 1) / TILE;
  const NAME_job q = {
    {(vec *)(slots[place[2]] + place[3]), in, a[6], a[7], a[10], a[11]},
    {(vec *)(slots[place[0]] + place[1]), out, a[8], a[9], 0, 0},
    {down, across, room},
    (float *)(slots[place[4]] + place[5]),
    (int32_t *)(slots[place[6]] + place[7]),
  };
  const int64_t tiles = n * down * across;
  vec *memory = (vec *)q.marks + (tiles + L - 1) / L;
  int mixed = 0;
  #pragma omp parallel num_threads(threads) if (threads > 1)
  if (ins) NAME_panels(&q, tiles, ins, outs, memory, &mixed);
  else NAME_strips(&q, tiles, shared, memory, &mixed);
  return 0;
}
#pragma clang fp contract(off)
