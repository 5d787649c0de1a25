/* Max and average pooling, and their gradients.

   A plane is [h, w], or [h, w, lanes] in the layouts with lanes.  A thread computes a group of V
   neighbours: lanes of a pixel, with vector loads and stores if all groups are whole, or the same pixel
   of V planes, so that index computations are shared.

   Forward, a thread computes one window.  Backward, it gathers from the windows that cover its pixels,
   so no atomics are needed: it computes a cell of pixels, of one pixel or as many as the stride, that
   the same windows cover.  All loads are inside of the image, also those whose value is not used: none
   depends on a comparison.

   Sizes: count, h, w, rows, columns, lanes, planes, the padding before h and w; for averages begin and
   end of the rows, then of the columns, that the divisor counts.  Window and stride are macros, so that
   short loops are unrolled.

   T, W, S, LOAD, STORE  of an element
   P                     type of an index in a window
   LOWEST                smallest value of W
   IS_MAX, BACKWARD      which of the four kernels this is
   WINDOW_H, WINDOW_W, STRIDE_H, STRIDE_W  window and stride
   V                     neighbours of a group
   LAST                  whether these are lanes
   ADDRESSES             bitwise or of the addresses of all operands
   UNROLLED              rows of a window that are unrolled
   CELL_H, CELL_W        rows and columns of a cell
   REACH_H, REACH_W      rows and columns of windows that cover a cell
   OUT                   the word with the address of the gradient */
template <typename E>
static __forceinline__ void NAME_load(E *to, const E *from, bool whole, I neighbour_step, I n) {
  if (whole) {
    mg_load<V>(to, (const char *)from);
  } else {
    #pragma unroll
    for (int u = 0; u < V; u++) to[u] = from[min((I)u, n - 1) * neighbour_step];
  }
}
template <typename E>
static __forceinline__ void NAME_store(E *to, const E *from, bool whole, I neighbour_step, I n) {
  if (whole) {
    mg_store<V>((char *)to, from);
  } else {
    #pragma unroll
    for (int u = 0; u < V; u++)
      if (u < n) to[u * neighbour_step] = from[u];
  }
}
static __forceinline__ int NAME_clamp(int i, int n) { return min(max(i, 0), n - 1); }
/* Compute a group: pixel or cell (i, j) of GROUPS_H x GROUPS_W, with n neighbours. */
#if BACKWARD
#define GROUPS_H ((h + top + (CELL_H - 1)) / CELL_H)
#define GROUPS_W ((w + left + (CELL_W - 1)) / CELL_W)
#else
#define GROUPS_H rows
#define GROUPS_W columns
#endif
template <bool whole> static __forceinline__ void NAME_group(const NAME_args &a, I e) {
  const int64_t *size = a.w + SIZES;
  const int h = size[1], w = size[2], rows = size[3], columns = size[4];
  const I lanes = size[5], planes = size[6];
  const int top = size[7], left = size[8];
  const int window_h = WINDOW_H, window_w = WINDOW_W, stride_h = STRIDE_H, stride_w = STRIDE_W;
  const I groups = LAST ? (lanes + V - 1) / V : 1;
  I rest = e / groups;
  const I lane = (e - rest * groups) * V;
  const int j = rest % (I)GROUPS_W;
  rest /= (I)GROUPS_W;
  const int i = rest % (I)GROUPS_H;
  const I plane = rest / (I)GROUPS_H * (LAST ? 1 : V);
  const I n = LAST ? lanes - lane : planes - plane;
  const I pixels = (I)h * w, windows = (I)rows * columns;
  const I neighbour_step = LAST ? 1 : pixels, window_step = LAST ? 1 : windows;
#if !BACKWARD
  const int y = i * stride_h - top, x = j * stride_w - left;
  const T *from = (const T *)mg_global(a.w[0]) + plane * pixels * lanes + lane;
  const I o = (plane * windows + (I)i * columns + j) * lanes + lane;
  T result[V];
#if IS_MAX
  W best[V];
  P index[V]; /* the index of the first pixel inside of the image */
  #pragma unroll
  for (int u = 0; u < V; u++) best[u] = LOWEST, index[u] = max(0, -y) * window_w + max(0, -x);
#else
  const int counted_h = min((int)size[10], y + window_h) - max((int)size[9], y);
  const int counted_w = min((int)size[12], x + window_w) - max((int)size[11], x);
  S sum[V] = {};
#endif
  #pragma unroll UNROLLED
  for (int p = 0; p < window_h; p++)
    #pragma unroll 8
    for (int q = 0; q < window_w; q++) {
      const bool inside = y + p >= 0 && y + p < h && x + q >= 0 && x + q < w;
      const I pixel = (I)NAME_clamp(y + p, h) * w + NAME_clamp(x + q, w);
      T loaded[V];
      NAME_load(loaded, from + pixel * lanes, whole, neighbour_step, n);
      #pragma unroll
      for (int u = 0; u < V; u++) {
        const W v = LOAD(loaded[u]);
#if IS_MAX
        const bool larger = inside & !(v <= best[u]) & (best[u] == best[u]); /* or the first NaN */
        best[u] = larger ? v : best[u];
        index[u] = larger ? p * window_w + q : index[u];
#else
        sum[u] += inside ? v : 0;
#endif
      }
    }
  #pragma unroll
  for (int u = 0; u < V; u++)
#if IS_MAX
    result[u] = STORE(best[u]);
#else
    result[u] = STORE((W)sum[u] / (W)(counted_h * counted_w));
#endif
  NAME_store((T *)mg_global(a.w[1]) + o, result, whole, window_step, n);
#if IS_MAX
  NAME_store((P *)mg_global(a.w[2]) + o, index, whole, window_step, n);
#endif
#else
  const int first_y = i * CELL_H, first_x = j * CELL_W;
  const int last_i = first_y / stride_h, last_j = first_x / stride_w;
  const int in_y = first_y % stride_h, in_x = first_x % stride_w;
  const T *dy = (const T *)mg_global(a.w[0]) + plane * windows * lanes + lane;
  S sum[CELL_H][CELL_W][V] = {};
  #pragma unroll UNROLLED
  for (int k = 0; k < REACH_H; k++)
    #pragma unroll 8
    for (int l = 0; l < REACH_W; l++) {
      const int y = (last_i - k) * stride_h - top, x = (last_j - l) * stride_w - left;
      const bool exists = last_i >= k && last_i - k < rows && last_j >= l && last_j - l < columns;
      const int row = NAME_clamp(last_i - k, rows), column = NAME_clamp(last_j - l, columns);
      const I o = ((I)row * columns + column) * lanes;
      T loaded[V];
      NAME_load(loaded, dy + o, whole, window_step, n);
#if IS_MAX
      P index[V];
      const P *indices = (const P *)mg_global(a.w[1]) + plane * windows * lanes + lane;
      NAME_load(index, indices + o, whole, window_step, n);
#else
      const int counted_h = min((int)size[10], y + window_h) - max((int)size[9], y);
      const int counted_w = min((int)size[12], x + window_w) - max((int)size[11], x);
      W share[V];
      #pragma unroll
      for (int u = 0; u < V; u++) share[u] = LOAD(loaded[u]) / (W)(counted_h * counted_w);
#endif
      #pragma unroll
      for (int p = 0; p < CELL_H; p++)
        #pragma unroll
        for (int q = 0; q < CELL_W; q++) {
          const int index_y = k * stride_h + in_y + p, index_x = l * stride_w + in_x + q;
          const bool covers = exists && index_y < window_h && index_x < window_w;
          #pragma unroll
          for (int u = 0; u < V; u++)
#if IS_MAX
            sum[p][q][u] +=
                index[u] == (covers ? index_y * window_w + index_x : -1) ? LOAD(loaded[u]) : (W)0;
#else
            sum[p][q][u] += covers ? share[u] : 0;
#endif
        }
    }
  T *dx = (T *)mg_global(a.w[OUT]) + plane * pixels * lanes + lane;
  #pragma unroll
  for (int p = 0; p < CELL_H; p++)
    #pragma unroll
    for (int q = 0; q < CELL_W; q++) {
      const int y = first_y + p - top, x = first_x + q - left;
      if (y < 0 || y >= h || x < 0 || x >= w) continue;
      T result[V];
      #pragma unroll
      for (int u = 0; u < V; u++) result[u] = STORE((W)sum[p][q][u]);
      NAME_store(dx + ((I)y * w + x) * lanes, result, whole, neighbour_step, n);
    }
#endif
}
KERNEL {
  EACH_ELEMENT {
    const bool aligned = !(ADDRESSES & 15);
    if (LAST && aligned && (uint32_t)a.w[SIZES + 5] % V == 0)
      NAME_group<true>(a, e);
    else
      NAME_group<false>(a, e);
  }
}
#undef GROUPS_H
#undef GROUPS_W
