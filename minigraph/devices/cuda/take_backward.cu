/* The gradient of gathering rows; a block for each row of dx [outer, n, columns].

   Each warp searches a part of the indices for the row, and adds the rows of dy that it finds in order,
   SUMS columns of each lane at once.  The sums of the warps are added in order, so every run gives the
   same bits. A warp that found nothing in the first columns does not search again.

   T, W, S, LOAD, STORE  of an element
   L                     type of an index
   WRAPS                 whether negative indices count from the end
   SUMS                  columns that a thread sums at once
   STARTS                whether the sums begin with rows [outer, n, columns], rather than 0 */
KERNEL {
  EACH_ROW {
    const int64_t columns = a.w[SIZES + 1], n = a.w[SIZES + 2];
    const int64_t indices = a.w[SIZES + 3], outer = row / n, own_index = row - outer * n;
    const T *dy = (const T *)mg_global(a.w[0]) + outer * indices * columns;
    const L *index = (const L *)mg_global(a.w[1]);
    const T *start = (const T *)mg_global(a.w[2]) + row * columns;
    T *dx = (T *)mg_global(a.w[2 + STARTS]) + row * columns;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t warp_indices = (indices + BLOCK - 1) / BLOCK * 32;
    const int64_t begin = warp * warp_indices, end = min(begin + warp_indices, indices);
    __shared__ S warp_sums[WARPS][32];
    bool found = true;
    for (int64_t first = 0; first < columns; first += SUMS * 32) {
      S sum[SUMS] = {};
      bool found_now = false;
      for (int64_t k = begin; found && k < end; k += 32) {
        int64_t resolved = -1;
        if (k + lane < end) {
          const L index_value = index[k + lane];
          resolved = WRAPS && index_value < 0 ? (int64_t)index_value + n : (int64_t)index_value;
          if ((uint64_t)resolved >= (uint64_t)n) *(int *)mg_global(a.w[FLAG]) = 1;
        }
        uint32_t matches = __ballot_sync(0xffffffffu, resolved == own_index);
        found_now = found_now || matches;
        while (matches) { /* load up to four rows at once, then add them */
          T loaded[4][SUMS];
          #pragma unroll
          for (int m = 0; m < 4; m++) {
            const bool is_match = matches != 0;
            const T *p = dy + (k + (is_match ? __ffs(matches) - 1 : 0)) * columns + first + lane;
            matches &= matches - 1;
            #pragma unroll
            for (int u = 0; u < SUMS; u++)
              loaded[m][u] = is_match && first + lane + 32 * u < columns ? p[32 * u] : (T)0;
          }
          #pragma unroll
          for (int m = 0; m < 4; m++)
            #pragma unroll
            for (int u = 0; u < SUMS; u++) sum[u] += LOAD(loaded[m][u]);
        }
      }
      found = found_now;
      if (!__syncthreads_or(found)) { /* no warp found the row */
        for (int64_t j = first + threadIdx.x; j < columns; j += BLOCK) dx[j] = STARTS ? start[j] : (T)0;
        break;
      }
      #pragma unroll
      for (int u = 0; u < SUMS; u++) {
        warp_sums[warp][lane] = sum[u];
        __syncthreads();
        if (warp == 0 && first + lane + 32 * u < columns) {
          S total = STARTS ? LOAD(start[first + lane + 32 * u]) : 0;
          for (int k = 0; k < WARPS; k++) total += warp_sums[k][lane];
          dx[first + lane + 32 * u] = STORE((W)total);
        }
        __syncthreads();
      }
    }
  }
}
