/* The index of the first maximum of each row; a warp, or for long rows a block, reduces a row.  NaN is
   larger than any number.  A thread without an element has index -1.

   T, W, LOAD  of an element */
struct NAME_best {
  W value;
  int64_t index;
};
static NAME_best NAME_better(NAME_best a, NAME_best b) {
  const bool is_nan = b.value != b.value && a.value == a.value;
  const bool equal = a.value == b.value || (a.value != a.value && b.value != b.value);
  return b.index >= 0 && (a.index < 0 || b.value > a.value || is_nan || (equal && b.index < a.index))
             ? b : a;
}
KERNEL {
  EACH_ROW {
    const int64_t n = a.w[SIZES + 1];
    const T *p = (const T *)mg_global(a.w[0]) + row * n;
    NAME_best best = {0, -1};
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
      best = NAME_better(best, NAME_best{(W)LOAD(p[j]), j});
    for (int d = 16; d > 0; d /= 2) {
      const W value = __shfl_xor_sync(0xffffffffu, best.value, d);
      const int64_t index = __shfl_xor_sync(0xffffffffu, best.index, d);
      best = NAME_better(best, NAME_best{value, index});
    }
    if (WARPS > 1) {
      __shared__ NAME_best warp_best[WARPS];
      if (threadIdx.x % 32 == 0) warp_best[threadIdx.x / 32] = best;
      __syncthreads();
      for (int k = 0; k < WARPS; k++) best = NAME_better(best, warp_best[k]);
      __syncthreads();
    }
    if (threadIdx.x == 0) ((int64_t *)mg_global(a.w[1]))[row] = best.index;
  }
}
