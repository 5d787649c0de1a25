/* The gradient of taking rows: a block does a row of dx [outer, n, columns].

   Each of its warps looks for the row's number in a stretch of the indices and adds what it finds
   in their order, as many columns at once as it has sums; the sums of the warps are added in order
   too, so every run gives the same bits.  A warp that has found nothing need not look again.

   T, W, S, LOAD, STORE  of an element
   L                     type of an index
   WRAPS                 whether indices below 0 count from the end
   SUMS                  columns that a thread adds up at once */
KERNEL {
  EACH_ROW {
    const int64_t columns = a.w[SIZES + 1], n = a.w[SIZES + 2];
    const int64_t indices = a.w[SIZES + 3], outer = row / n, mine = row - outer * n;
    const T *dy = (const T *)mg_global(a.w[0]) + outer * indices * columns;
    const L *index = (const L *)mg_global(a.w[1]);
    T *dx = (T *)mg_global(a.w[2]) + row * columns;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t stretch = (indices + BLOCK - 1) / BLOCK * 32;
    const int64_t begin = warp * stretch, end = min(begin + stretch, indices);
    __shared__ S of_warp[WARPS][32];
    bool found = true;
    for (int64_t first = 0; first < columns; first += SUMS * 32) {
      S sum[SUMS] = {};
      bool again = false;
      for (int64_t k = begin; found && k < end; k += 32) {
        int64_t at = -1;
        if (k + lane < end) {
          const L given = index[k + lane];
          at = WRAPS && given < 0 ? (int64_t)given + n : (int64_t)given;
          if ((uint64_t)at >= (uint64_t)n) *(int *)mg_global(a.w[FLAG]) = 1;
        }
        uint32_t those = __ballot_sync(0xffffffffu, at == mine);
        again = again || those;
        while (those) { /* load four rows at once, if there are so many, then add */
          T part[4][SUMS];
          #pragma unroll
          for (int m = 0; m < 4; m++) {
            const bool there = those != 0;
            const T *p = dy + (k + (there ? __ffs(those) - 1 : 0)) * columns + first + lane;
            those &= those - 1;
            #pragma unroll
            for (int u = 0; u < SUMS; u++)
              part[m][u] = there && first + lane + 32 * u < columns ? p[32 * u] : (T)0;
          }
          #pragma unroll
          for (int m = 0; m < 4; m++)
            #pragma unroll
            for (int u = 0; u < SUMS; u++) sum[u] += LOAD(part[m][u]);
        }
      }
      found = again;
      if (!__syncthreads_or(found)) { /* no index names the row */
        for (int64_t j = first + threadIdx.x; j < columns; j += BLOCK) dx[j] = 0;
        break;
      }
      #pragma unroll
      for (int u = 0; u < SUMS; u++) {
        of_warp[warp][lane] = sum[u];
        __syncthreads();
        if (warp == 0 && first + lane + 32 * u < columns) {
          S total = of_warp[0][lane];
          for (int k = 1; k < WARPS; k++) total += of_warp[k][lane];
          dx[first + lane + 32 * u] = STORE((W)total);
        }
        __syncthreads();
      }
    }
  }
}
