/* The cross entropy of a softmax, or its gradient (BACKWARD); a thread, a warp or a block for each row,
   by its length.  Short stretches are summed in W and added to a total in double, so the error does not
   grow with the length.  A negative label is too large as unsigned.

   The gradient may overwrite the logits: a thread writes an element after it has read it for the last
   time.

   T, W, LOAD, STORE  of a logit
   EXP, LOG           for W
   L                  type of a label
   LABELS             index of the operand with the labels */
static W NAME_max(W v, W w) { return w > v || w != w ? w : v; }
/* Return to all threads of a row its maximum, or NaN if there is one. */
static W NAME_peak(const T *p, int64_t n) {
  W peak = -INFINITY;
  for (int64_t j = threadIdx.x; j < n; j += blockDim.x) peak = NAME_max(peak, LOAD(p[j]));
  for (int distance = LANES / 2; distance > 0; distance /= 2)
    peak = NAME_max(peak, __shfl_xor_sync(0xffffffffu, peak, distance));
  if (WARPS > 1) {
    __shared__ W warp_values[WARPS];
    if (threadIdx.x % 32 == 0) warp_values[threadIdx.x / 32] = peak;
    __syncthreads();
    for (int k = 0; k < WARPS; k++) peak = NAME_max(peak, warp_values[k]);
    __syncthreads();
  }
  return peak;
}
/* Return to all threads of a row the sum of exp(p - peak). */
static double NAME_sum(const T *p, int64_t n, W peak) {
  double total = 0;
  for (int64_t j = threadIdx.x; j < n;) {
    W stretch = 0;
    for (int k = 0; k < 32 && j < n; k++, j += blockDim.x) stretch += EXP(LOAD(p[j]) - peak);
    total += stretch;
  }
  for (int distance = LANES / 2; distance > 0; distance /= 2)
    total += __shfl_xor_sync(0xffffffffu, total, distance);
  if (WARPS > 1) {
    __shared__ double warp_values[WARPS];
    if (threadIdx.x % 32 == 0) warp_values[threadIdx.x / 32] = total;
    __syncthreads();
    total = 0;
    for (int k = 0; k < WARPS; k++) total += warp_values[k];
    __syncthreads();
  }
  return total;
}
KERNEL {
  EACH_ROW {
    const int64_t n = a.w[SIZES + 1];
    const L label = ((const L *)mg_global(a.w[LABELS]))[row];
    const bool invalid = (uint64_t)label >= (uint64_t)n;
    if (invalid && threadIdx.x == 0) *(int *)mg_global(a.w[FLAG]) = 1;
#if BACKWARD
    const T *p = (const T *)mg_global(a.w[1]) + row * n;
    T *q = (T *)mg_global(a.w[3]) + row * n;
    const W upstream = LOAD(((const T *)mg_global(a.w[0]))[row]);
    const W peak = NAME_peak(p, n), total = NAME_sum(p, n, peak);
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
      const bool is_label = !invalid && j == (int64_t)label;
      q[j] = STORE((is_label ? -upstream : 0) + EXP(LOAD(p[j]) - peak) / total * upstream);
    }
#else
    const T *p = (const T *)mg_global(a.w[0]) + row * n;
    const W peak = NAME_peak(p, n), log_sum = LOG((W)NAME_sum(p, n, peak));
    if (threadIdx.x == 0)
      ((T *)mg_global(a.w[2]))[row] = STORE(invalid ? NAN : -((LOAD(p[label]) - peak) - log_sum));
#endif
  }
}
