/* Max and average pooling, and their gradients.

   A plane is [h, w], or [h, w, lanes] in the layouts with lanes.  A thread does a group of
   neighbours: lanes of a pixel, which it loads and stores at once where all groups are whole, or
   the same pixel of some planes.  So what it computes of indices serves all of them.

   It looks at the window of an element of the output.  For the gradient it gathers from the windows
   that reach its pixels, so that nothing is added by two threads: it does a cell of pixels that lie
   in the same windows, one or as many as those are apart.  All loads of a thread come from inside
   the image, also those that do not count: then none has to wait for a comparison.

   Sizes: count, h, w, rows, columns, lanes, planes, the padding before h and w; of averages the
   first row that counts as an element of a window, and the one behind the last; the same of
   columns.  Window and stride are part of the text, so that short loops are unrolled.

   T, W, S, LOAD, STORE  of an element
   P                     type of a place in a window
   LOWEST                value of W
   IS_MAX, BACKWARD      which of the four kernels this is
   R, Q, DOWN, ACROSS    window and stride, rows first
   V                     neighbours of a group
   LAST                  whether they are lanes
   ADDRESSES             of all operands, in one number by "or"
   UNROLLED              rows of a window that are unrolled
   CELL_H, CELL_W, REACH_H, REACH_W  rows and columns of a cell, and of the windows that reach it
   OUT                   the word with the address of the gradient */
template <typename E>
static __forceinline__ void NAME_load(E *to, const E *from, bool whole, I apart, I n) {
  if (whole) {
    mg_load<V>(to, (const char *)from);
  } else {
    #pragma unroll
    for (int u = 0; u < V; u++) to[u] = from[min((I)u, n - 1) * apart];
  }
}
template <typename E>
static __forceinline__ void NAME_store(E *to, const E *from, bool whole, I apart, I n) {
  if (whole) {
    mg_store<V>((char *)to, from);
  } else {
    #pragma unroll
    for (int u = 0; u < V; u++)
      if (u < n) to[u * apart] = from[u];
  }
}
static __forceinline__ int NAME_clamp(int i, int n) { return min(max(i, 0), n - 1); }
/* A group is the ith of HIGH and the jth of WIDE; of its neighbours n are there. */
#if BACKWARD
#define HIGH ((h + top + (CELL_H - 1)) / CELL_H)
#define WIDE ((w + left + (CELL_W - 1)) / CELL_W)
#else
#define HIGH rows
#define WIDE columns
#endif
template <bool whole> static __forceinline__ void NAME_group(const NAME_args &a, I e) {
  const int64_t *size = a.w + SIZES;
  const int h = size[1], w = size[2], rows = size[3], columns = size[4];
  const I lanes = size[5], planes = size[6];
  const int top = size[7], left = size[8];
  const int r = R, s = Q, down = DOWN, across = ACROSS;
  const I groups = LAST ? (lanes + V - 1) / V : 1;
  I t = e / groups;
  const I lane = (e - t * groups) * V;
  const int j = t % (I)WIDE;
  t /= (I)WIDE;
  const int i = t % (I)HIGH;
  const I plane = t / (I)HIGH * (LAST ? 1 : V);
  const I n = LAST ? lanes - lane : planes - plane;
  const I pixels = (I)h * w, windows = (I)rows * columns;
  const I apart = LAST ? 1 : pixels, windows_apart = LAST ? 1 : windows;
#if !BACKWARD
  const int y = i * down - top, x = j * across - left;
  const T *from = (const T *)mg_global(a.w[0]) + plane * pixels * lanes + lane;
  const I o = (plane * windows + (I)i * columns + j) * lanes + lane;
  T result[V];
#if IS_MAX
  W best[V];
  P at[V]; /* a window may begin in the padding: start with its first pixel */
  #pragma unroll
  for (int u = 0; u < V; u++) best[u] = LOWEST, at[u] = max(0, -y) * s + max(0, -x);
#else
  const int height = min((int)size[10], y + r) - max((int)size[9], y);
  const int width = min((int)size[12], x + s) - max((int)size[11], x);
  S sum[V] = {};
#endif
  #pragma unroll UNROLLED
  for (int p = 0; p < r; p++)
    #pragma unroll 8
    for (int q = 0; q < s; q++) {
      const bool inside = y + p >= 0 && y + p < h && x + q >= 0 && x + q < w;
      const I pixel = (I)NAME_clamp(y + p, h) * w + NAME_clamp(x + q, w);
      T given[V];
      NAME_load(given, from + pixel * lanes, whole, apart, n);
      #pragma unroll
      for (int u = 0; u < V; u++) {
        const W v = LOAD(given[u]);
#if IS_MAX
        const bool larger = inside & !(v <= best[u]) & (best[u] == best[u]); /* or a first NaN */
        best[u] = larger ? v : best[u];
        at[u] = larger ? p * s + q : at[u];
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
    result[u] = STORE((W)sum[u] / (W)(height * width));
#endif
  NAME_store((T *)mg_global(a.w[1]) + o, result, whole, windows_apart, n);
#if IS_MAX
  NAME_store((P *)mg_global(a.w[2]) + o, at, whole, windows_apart, n);
#endif
#else
  const int first_y = i * CELL_H, first_x = j * CELL_W;
  const int last_i = first_y / down, last_j = first_x / across;
  const int in_y = first_y % down, in_x = first_x % across;
  const T *dy = (const T *)mg_global(a.w[0]) + plane * windows * lanes + lane;
  S sum[CELL_H][CELL_W][V] = {};
  #pragma unroll UNROLLED
  for (int k = 0; k < REACH_H; k++)
    #pragma unroll 8
    for (int l = 0; l < REACH_W; l++) {
      const int y = (last_i - k) * down - top, x = (last_j - l) * across - left;
      const bool there = last_i >= k && last_i - k < rows && last_j >= l && last_j - l < columns;
      const int row = NAME_clamp(last_i - k, rows), column = NAME_clamp(last_j - l, columns);
      const I o = ((I)row * columns + column) * lanes;
      T given[V];
      NAME_load(given, dy + o, whole, windows_apart, n);
#if IS_MAX
      P at[V];
      const P *place = (const P *)mg_global(a.w[1]) + plane * windows * lanes + lane;
      NAME_load(at, place + o, whole, windows_apart, n);
#else
      const int height = min((int)size[10], y + r) - max((int)size[9], y);
      const int width = min((int)size[12], x + s) - max((int)size[11], x);
      W share[V];
      #pragma unroll
      for (int u = 0; u < V; u++) share[u] = LOAD(given[u]) / (W)(height * width);
#endif
      #pragma unroll
      for (int p = 0; p < CELL_H; p++)
        #pragma unroll
        for (int q = 0; q < CELL_W; q++) {
          const int place_y = k * down + in_y + p, place_x = l * across + in_x + q;
          const bool counts = there && place_y < r && place_x < s;
          #pragma unroll
          for (int u = 0; u < V; u++)
#if IS_MAX
            sum[p][q][u] +=
                at[u] == (counts ? place_y * s + place_x : -1) ? LOAD(given[u]) : (W)0;
#else
            sum[p][q][u] += counts ? share[u] : 0;
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
      NAME_store(dx + ((I)y * w + x) * lanes, result, whole, apart, n);
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
#undef HIGH
#undef WIDE
