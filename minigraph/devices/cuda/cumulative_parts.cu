/* Cumulative sums of contiguous rows; a warp, or for long rows a block, scans a row in chunks with one
   element for each thread: a scan by shuffles in each warp, plus the sums of the warps and chunks
   before.

   T, W, S, LOAD, STORE  of an element
   IDENTITY              the sum of no elements
   AT                    position of element j in the order of the scan */
KERNEL {
  EACH_ROW {
    const int64_t n = a.w[SIZES + 1];
    const T *p = (const T *)mg_global(a.w[0]) + row * n;
    T *q = (T *)mg_global(a.w[1]) + row * n;
    S before = IDENTITY;
    for (int64_t first = 0; first < n; first += blockDim.x) {
      const int64_t j = first + threadIdx.x, at = AT;
      S sum = j < n ? (S)LOAD(p[at]) : IDENTITY;
      for (int distance = 1; distance < 32; distance *= 2) {
        const S sum_before = __shfl_up_sync(0xffffffffu, sum, distance);
        if (threadIdx.x % 32 >= distance) sum = sum_before + sum;
      }
      S after = before;
      if (WARPS > 1) {
        __shared__ S warp_sums[WARPS];
        if (threadIdx.x % 32 == 31) warp_sums[threadIdx.x / 32] = sum;
        __syncthreads();
        for (int k = 0; k < WARPS; k++) {
          if (k == threadIdx.x / 32) before = after;
          after += warp_sums[k];
        }
        __syncthreads();
      } else {
        after += __shfl_sync(0xffffffffu, sum, 31);
      }
      if (j < n) q[at] = STORE((W)(before + sum));
      before = after;
    }
  }
}
