/* Transpose matrices: x [rows, columns] to y [columns, rows], for images between nchw and layouts with
   lanes.

   A block transposes one tile after the other through shared memory, so that it reads and writes rows
   of 128 bytes.  The rows of the tile in shared memory are padded, against bank conflicts.  An index is
   summed before it is added to an address: for a sum of three terms NVRTC emits stores of single
   elements.

   T            unsigned integer of the size of an element
   SIDE         rows, and columns, of a tile
   VECTOR       elements of a vector load
   ROW_VECTORS  vectors of a row of a tile */
KERNEL {
  EACH_ROW {
    const int side = SIDE, vector = VECTOR, row_vectors = ROW_VECTORS;
    const I rows = a.w[SIZES + 1], columns = a.w[SIZES + 2];
    const I tiles = (columns + side - 1) / side, tiles_down = (rows + side - 1) / side;
    const I t = row, strip = t / tiles, matrix = strip / tiles_down;
    const I c = (t - strip * tiles) * side, r = (strip - matrix * tiles_down) * side;
    const T *x = (const T *)mg_global(a.w[0]) + matrix * rows * columns + r * columns + c;
    T *y = (T *)mg_global(a.w[1]) + matrix * rows * columns + c * rows + r;
    const int tile_columns = min(columns - c, (I)side), tile_rows = min(rows - r, (I)side);
    const int step = BLOCK / row_vectors, passes = (side + step - 1) / step;
    const int first_i = threadIdx.x / row_vectors, first_j = threadIdx.x % row_vectors * vector;
    __shared__ T tile[side][side + 1];
    if (columns % vector == 0 && a.w[0] % 16 == 0) {
      T buffer[passes][vector];
      #pragma unroll
      for (int m = 0; m < passes; m++) { /* clamp to the matrix; duplicates are ignored */
        const int i = min(first_i + m * step, tile_rows - 1), j = min(first_j, tile_columns - vector);
        mg_load<vector>(buffer[m], (const char *)(x + (i * columns + j)));
      }
      #pragma unroll
      for (int m = 0; m < passes; m++) {
        const int i = min(first_i + m * step, tile_rows - 1), j = min(first_j, tile_columns - vector);
        #pragma unroll
        for (int u = 0; u < vector; u++) tile[i][j + u] = buffer[m][u];
      }
    } else {
      const int elements = side * side / BLOCK, batch = elements < 8 ? elements : 8;
      for (int m = 0; m < elements; m += batch) {
        T buffer[batch];
        #pragma unroll
        for (int u = 0; u < batch; u++) {
          const int k = threadIdx.x + (m + u) * BLOCK, i = k / side, j = k % side;
          buffer[u] = x[min(i, tile_rows - 1) * columns + min(j, tile_columns - 1)];
        }
        #pragma unroll
        for (int u = 0; u < batch; u++) {
          const int k = threadIdx.x + (m + u) * BLOCK;
          tile[k / side][k % side] = buffer[u];
        }
      }
    }
    __syncthreads();
    if (rows % vector == 0 && a.w[1] % 16 == 0) {
      #pragma unroll
      for (int m = 0; m < passes; m++) {
        const int i = first_i + m * step, j = first_j;
        T buffer[vector];
        #pragma unroll
        for (int u = 0; u < vector; u++) buffer[u] = tile[j + u][i];
        if (i < tile_columns && j < tile_rows) mg_store<vector>((char *)(y + (i * rows + j)), buffer);
      }
    } else {
      #pragma unroll 8
      for (int m = 0; m < side * side / BLOCK; m++) {
        const int k = threadIdx.x + m * BLOCK, i = k / side, j = k % side;
        if (i < tile_columns && j < tile_rows) y[i * rows + j] = tile[j][i];
      }
    }
    __syncthreads();
  }
}
