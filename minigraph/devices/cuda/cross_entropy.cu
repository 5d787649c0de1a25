/* The cross entropy of a softmax, or its gradient: a thread does a row, a warp where rows are
   longer, or a block.  Sums are taken in pieces of float32 that are added up in double, so the
   error does not grow with the length.  A negative label is a large one.

   The gradient may be written where the logits are read: a thread reads an element for the last
   time just before it writes it.

   T, W, LOAD, STORE  of a logit
   EXP, LOG           for its type
   L                  type of a label
   LABELS             which operand they are
   BACKWARD           whether this is the gradient */
static W NAME_larger(W v, W w) { return w > v || w != w ? w : v; }
/* All threads of a row get the largest of its n elements, NaN if there is one ... */
static W NAME_peak(const T *p, int64_t n) {
  W peak = -INFINITY;
  for (int64_t j = threadIdx.x; j < n; j += blockDim.x) peak = NAME_larger(peak, LOAD(p[j]));
  for (int d = LANES / 2; d > 0; d /= 2)
    peak = NAME_larger(peak, __shfl_xor_sync(0xffffffffu, peak, d));
  if (WARPS > 1) {
    __shared__ W of_warp[WARPS];
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = peak;
    __syncthreads();
    for (int k = 0; k < WARPS; k++) peak = NAME_larger(peak, of_warp[k]);
    __syncthreads();
  }
  return peak;
}
/* ... and the sum of exp(p - peak). */
static double NAME_sum(const T *p, int64_t n, W peak) {
  double total = 0;
  for (int64_t j = threadIdx.x; j < n;) {
    W part = 0;
    for (int k = 0; k < 32 && j < n; k++, j += blockDim.x) part += EXP(LOAD(p[j]) - peak);
    total += part;
  }
  for (int d = LANES / 2; d > 0; d /= 2) total += __shfl_xor_sync(0xffffffffu, total, d);
  if (WARPS > 1) {
    __shared__ double of_warp[WARPS];
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = total;
    __syncthreads();
    total = 0;
    for (int k = 0; k < WARPS; k++) total += of_warp[k];
    __syncthreads();
  }
  return total;
}
KERNEL {
  EACH_ROW {
    const int64_t n = a.w[SIZES + 1];
    const L label = ((const L *)mg_global(a.w[LABELS]))[row];
    const bool outside = (uint64_t)label >= (uint64_t)n;
    if (outside && threadIdx.x == 0) *(int *)mg_global(a.w[FLAG]) = 1;
#if BACKWARD
    const T *p = (const T *)mg_global(a.w[1]) + row * n;
    T *q = (T *)mg_global(a.w[3]) + row * n;
    const W d = LOAD(((const T *)mg_global(a.w[0]))[row]);
    const W peak = NAME_peak(p, n), total = NAME_sum(p, n, peak);
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
      const bool chosen = !outside && j == (int64_t)label;
      q[j] = STORE((chosen ? -d : 0) + EXP(LOAD(p[j]) - peak) / total * d);
    }
#else
    const T *p = (const T *)mg_global(a.w[0]) + row * n;
    const W peak = NAME_peak(p, n), shift = LOG((W)NAME_sum(p, n, peak));
    if (threadIdx.x == 0)
      ((T *)mg_global(a.w[2]))[row] = STORE(outside ? NAN : -((LOAD(p[label]) - peak) - shift));
#endif
  }
}
