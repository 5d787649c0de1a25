/* The first of the largest of n elements, where a NaN is larger than all: a warp does a row, or a
   block where it is long.  A thread without an element has none at -1.

   T, W, LOAD  of an element */
struct NAME_best {
  W v;
  int64_t at;
};
static NAME_best NAME_better(NAME_best a, NAME_best b) {
  const bool nan = b.v != b.v && a.v == a.v, equal = a.v == b.v || (a.v != a.v && b.v != b.v);
  return b.at >= 0 && (a.at < 0 || b.v > a.v || nan || (equal && b.at < a.at)) ? b : a;
}
KERNEL {
  EACH_ROW {
    const int64_t n = a.w[SIZES + 1];
    const T *p = (const T *)mg_global(a.w[0]) + row * n;
    NAME_best best = {0, -1};
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
      best = NAME_better(best, NAME_best{(W)LOAD(p[j]), j});
    for (int d = 16; d > 0; d /= 2) {
      const W v = __shfl_xor_sync(0xffffffffu, best.v, d);
      const int64_t at = __shfl_xor_sync(0xffffffffu, best.at, d);
      best = NAME_better(best, NAME_best{v, at});
    }
    if (WARPS > 1) {
      __shared__ NAME_best of_warp[WARPS];
      if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = best;
      __syncthreads();
      for (int k = 0; k < WARPS; k++) best = NAME_better(best, of_warp[k]);
      __syncthreads();
    }
    if (threadIdx.x == 0) ((int64_t *)mg_global(a.w[1]))[row] = best.at;
  }
}
