/* Cumulative sums of contiguous rows: a warp does a row, or a block where it is long, so many
   elements at once, of which each thread has one.  Sums of 1, 2, 4, ... elements are joined; what
   stands before them is added last.

   T, W, S, LOAD, STORE  of an element
   NONE                  the sum of no elements
   AT                    where element j of the order of addition lies */
KERNEL {
  EACH_ROW {
    const int64_t n = a.w[SIZES + 1];
    const T *p = (const T *)mg_global(a.w[0]) + row * n;
    T *q = (T *)mg_global(a.w[1]) + row * n;
    S before = NONE;
    for (int64_t first = 0; first < n; first += blockDim.x) {
      const int64_t j = first + threadIdx.x, at = AT;
      S mine = j < n ? (S)LOAD(p[at]) : NONE;
      for (int d = 1; d < 32; d *= 2) {
        const S other = __shfl_up_sync(0xffffffffu, mine, d);
        if (threadIdx.x % 32 >= d) mine = other + mine;
      }
      S after = before;
      if (WARPS > 1) {
        __shared__ S of_warp[WARPS];
        if (threadIdx.x % 32 == 31) of_warp[threadIdx.x / 32] = mine;
        __syncthreads();
        for (int k = 0; k < WARPS; k++) {
          if (k == threadIdx.x / 32) before = after;
          after += of_warp[k];
        }
        __syncthreads();
      } else {
        after += __shfl_sync(0xffffffffu, mine, 31);
      }
      if (j < n) q[at] = STORE((W)(before + mine));
      before = after;
    }
  }
}
