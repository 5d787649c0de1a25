/* Images moved between nchw and the layouts with lanes: transposed matrices, each x [rows, columns]
   and y [columns, rows].

   A block moves one tile after the other by way of shared memory, so that it reads and writes rows
   of 128 bytes.  Rows of the tile begin in different banks.  An index is a sum before it is added
   to an address: of a sum of three, NVRTC makes stores of single elements.

   T       unsigned integers of the size of an element
   SIDE    elements of a tile's rows and columns
   VECTOR  elements that are loaded at once
   ACROSS  such vectors of a row */
KERNEL {
  EACH_ROW {
    const int side = SIDE, vector = VECTOR, across = ACROSS;
    const I rows = a.w[SIZES + 1], columns = a.w[SIZES + 2];
    const I tiles = (columns + side - 1) / side, high = (rows + side - 1) / side;
    const I t = row, strip = t / tiles, matrix = strip / high;
    const I c = (t - strip * tiles) * side, r = (strip - matrix * high) * side;
    const T *x = (const T *)mg_global(a.w[0]) + matrix * rows * columns + r * columns + c;
    T *y = (T *)mg_global(a.w[1]) + matrix * rows * columns + c * rows + r;
    const int wide = min(columns - c, (I)side), tall = min(rows - r, (I)side);
    const int step = BLOCK / across, turns = (side + step - 1) / step;
    const int first_i = threadIdx.x / across, first_j = threadIdx.x % across * vector;
    __shared__ T tile[side][side + 1];
    if (columns % vector == 0 && a.w[0] % 16 == 0) {
      T part[turns][vector];
      #pragma unroll
      for (int m = 0; m < turns; m++) { /* what lies outside is read again instead */
        const int i = min(first_i + m * step, tall - 1), j = min(first_j, wide - vector);
        mg_load<vector>(part[m], (const char *)(x + (i * columns + j)));
      }
      #pragma unroll
      for (int m = 0; m < turns; m++) {
        const int i = min(first_i + m * step, tall - 1), j = min(first_j, wide - vector);
        #pragma unroll
        for (int u = 0; u < vector; u++) tile[i][j + u] = part[m][u];
      }
    } else {
      const int all = side * side / BLOCK, some = all < 8 ? all : 8;
      for (int m = 0; m < all; m += some) {
        T part[some];
        #pragma unroll
        for (int u = 0; u < some; u++) {
          const int k = threadIdx.x + (m + u) * BLOCK, i = k / side, j = k % side;
          part[u] = x[min(i, tall - 1) * columns + min(j, wide - 1)];
        }
        #pragma unroll
        for (int u = 0; u < some; u++) {
          const int k = threadIdx.x + (m + u) * BLOCK;
          tile[k / side][k % side] = part[u];
        }
      }
    }
    __syncthreads();
    if (rows % vector == 0 && a.w[1] % 16 == 0) {
      #pragma unroll
      for (int m = 0; m < turns; m++) {
        const int i = first_i + m * step, j = first_j;
        T part[vector];
        #pragma unroll
        for (int u = 0; u < vector; u++) part[u] = tile[j + u][i];
        if (i < wide && j < tall) mg_store<vector>((char *)(y + (i * rows + j)), part);
      }
    } else {
      #pragma unroll 8
      for (int m = 0; m < side * side / BLOCK; m++) {
        const int k = threadIdx.x + m * BLOCK, i = k / side, j = k % side;
        if (i < wide && j < tall) y[i * rows + j] = tile[j][i];
      }
    }
    __syncthreads();
  }
}
