
static void NAME_units(const int64_t *a, char **slots, int64_t unit, int64_t end, int64_t split, int64_t run) {
  const int64_t units = a[1], loops = a[2], splits = a[3];
  const int64_t pitch = units + loops + 2;
  const int64_t *extent = a + 7 + units, *operand = extent + loops;
  const int64_t *constants = operand + 2 * pitch;
  char *const partial = slots[a[5]] + a[6];
  int64_t place[2], at[2], step[2], index[MG_MAX_RANK], length = 1;
  for (int64_t d = 0; d < loops; d++) length *= extent[d];
  const int64_t share = ((length + splits - 1) / splits + 63) / 64 * 64;
  const int64_t from = share * split < length ? share * split : length;
  const int64_t to = from + share < length ? from + share : length;
  (void)partial; (void)constants; (void)run;
  for (; unit < end; unit++) {
    const int64_t inner = extent[loops - 1], first_row = from ? from / inner : 0;
    mg_place(a, 2, unit, place);
    char *const base0 = slots[operand[0 * pitch]] + place[0];
    char *const base1 = slots[operand[1 * pitch]] + place[1];
    float *p1 = (float *)(base1);
    double total2[16];
    #pragma omp simd
    for (int k = 0; k < 16; k++) {
      total2[k] = 0;
    }
    if (splits == 1 || run == 0) {
      float lane2[64];
      for (int u = 0; u < 4; u++)
        #pragma omp simd
        for (int k = 0; k < 16; k++) {
          lane2[u * 16 + k] = 0;
        }
      int64_t filled = 0;
      int64_t begin = from, col = from - first_row * inner;
      mg_start(a, 2, loops - 1, first_row, at, step, index);
      while (begin < to) {
        int64_t n = inner - col < to - begin ? inner - col : to - begin;
        if (n > 256) n = 256;
        const float *p0 = (const float *)(base0 + at[0] + col * 16 * (int64_t)sizeof(float));
        int64_t j = 0;
        for (; j + 4 <= n; j += 4)
          for (int u = 0; u < 4; u++)
            #pragma omp simd
            for (int k = 0; k < 16; k++) {
              const float v0 = p0[(j + u) * 16 + k];
              const float v1 = v0 * v0;
              lane2[u * 16 + k] = v1 + lane2[u * 16 + k];
            }
        for (int u = 0; u < n - j; u++)
          #pragma omp simd
          for (int k = 0; k < 16; k++) {
            const float v0 = p0[(j + u) * 16 + k];
            const float v1 = v0 * v0;
            lane2[u * 16 + k] = v1 + lane2[u * 16 + k];
          }
        begin += n;
        if ((col += n) == inner) {
          col = 0;
          mg_next(a, 2, loops - 1, at, step, index);
        }
        filled += (n + 3) / 4;
        if (filled >= 64 || begin == to) {
          filled = 0;
          for (int u = 0; u < 4; u++)
            #pragma omp simd
            for (int k = 0; k < 16; k++) {
              total2[k] = lane2[u * 16 + k] + total2[k];
              lane2[u * 16 + k] = 0;
            }
        }
      }
    }
    if (splits > 1) {
      if (run == 0) {
        #pragma omp simd
        for (int k = 0; k < 16; k++) {
          *(double *)(partial + 8 * (((unit * splits + split) * 1 + 0) * 16 + k)) = total2[k];
        }
        return;
      }
      for (int64_t s = 0; s < splits; s++) {
        #pragma omp simd
        for (int k = 0; k < 16; k++) {
          total2[k] = *(double *)(partial + 8 * (((unit * splits + s) * 1 + 0) * 16 + k)) + total2[k];
        }
      }
    }
    float all2[16];
    #pragma omp simd
    for (int k = 0; k < 16; k++) {
      const float v2 = total2[k];
      all2[k] = v2;
    }
    if (splits == 1 || run == 1) {
      #pragma omp simd
      for (int k = 0; k < 16; k++) {
        const float v2 = all2[k];
        p1[k] = v2;
      }
    }
  }
}

int NAME(const int64_t *a, char **slots) {
  int64_t units = 1;
  const int64_t splits = a[3];
  for (int64_t d = 0; d < a[1]; d++) units *= a[7 + d];
  const int64_t count = units, runs = 1, shares = splits > 1 ? count * splits : a[0];
  if (a[0] <= 1) {
    NAME_units(a, slots, 0, count, 0, 0);
  } else {
    for (int64_t run = 0; run < runs; run++) {
      #pragma omp parallel for num_threads(a[0]) schedule(static)
      for (int64_t w = 0; w < shares; w++) {
        const int64_t begin = splits > 1 ? w / splits : count * w / shares;
        const int64_t end = splits > 1 ? begin + 1 : count * (w + 1) / shares;
        NAME_units(a, slots, begin, end, w % splits, run);
      }
    }
  }
  if (splits > 1)
    for (int64_t u = 0; u < count; u++) NAME_units(a, slots, u, u + 1, 0, 1);
  return 0;
}
