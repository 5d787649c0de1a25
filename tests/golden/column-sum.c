
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
    const int64_t width = a[6 + units], blocks = (width + 511) / 512;
    const int64_t first = unit % blocks * 512;
    const int64_t beside = width - first < 512 ? width - first : 512;
    const int64_t column = unit / blocks * width + first;
    mg_place(a, 2, column, place);
    char *const base0 = slots[operand[0 * pitch]] + place[0];
    char *const base1 = slots[operand[1 * pitch]] + place[1];
    float *p1 = (float *)(base1);
    double total2[512];
    #pragma GCC ivdep
    for (int64_t k = 0; k < beside; k++) {
      total2[k] = 0;
    }
    if (splits == 1 || run == 0) {
      float lane2[512];
      #pragma GCC ivdep
      for (int64_t k = 0; k < beside; k++) {
        lane2[k] = 0;
      }
      const int64_t inner = extent[loops - 1], first_row = from / inner;
      const int64_t down0 = operand[0 * pitch + pitch - 1];
      mg_start(a, 2, loops - 1, first_row, at, step, index);
      int64_t begin = from, down = from - first_row * inner;
      int64_t filled = 0;
      while (begin < to) {
        int64_t rows = inner - down < to - begin ? inner - down : to - begin;
        if (rows > 64 - filled) rows = 64 - filled;
        char *row0 = base0 + at[0] + down * down0;
        int64_t i = 0;
        for (; i + 4 <= rows; i += 4) {
          #pragma GCC ivdep
          for (int64_t k = 0; k < beside; k++) {
            float l2 = lane2[k];
            #pragma GCC unroll 4
            for (int u = 0; u < 4; u++) {
              const float *p0 = (const float *)(row0 + (i + u) * down0);
              const float v0 = p0[k];
              const float v1 = v0 * v0;
              l2 = v1 + l2;
            }
            lane2[k] = l2;
          }
        }
        for (; i < rows; i++) {
          const float *p0 = (const float *)(row0 + i * down0);
          #pragma GCC ivdep
          for (int64_t k = 0; k < beside; k++) {
            float l2 = lane2[k];
            const float v0 = p0[k];
            const float v1 = v0 * v0;
            l2 = v1 + l2;
            lane2[k] = l2;
          }
        }
        begin += rows;
        if ((down += rows) == inner) {
          down = 0;
          mg_next(a, 2, loops - 1, at, step, index);
        }
        if ((filled += rows) == 64 || begin == to) {
          filled = 0;
          #pragma GCC ivdep
          for (int64_t k = 0; k < beside; k++) {
            total2[k] = lane2[k] + total2[k];
            lane2[k] = 0;
          }
        }
      }
    }
    if (splits > 1) {
      if (run == 0) {
        #pragma GCC ivdep
        for (int64_t k = 0; k < beside; k++) {
          *(double *)(partial + 8 * (((column + k) * splits + split) * 1 + 0)) = total2[k];
        }
        return;
      }
      for (int64_t s = 0; s < splits; s++) {
        #pragma GCC ivdep
        for (int64_t k = 0; k < beside; k++) {
          total2[k] = *(double *)(partial + 8 * (((column + k) * splits + s) * 1 + 0)) + total2[k];
        }
      }
    }
    float all2[512];
    #pragma GCC ivdep
    for (int64_t k = 0; k < beside; k++) {
      const float v2 = total2[k];
      all2[k] = v2;
    }
    if (splits == 1 || run == 1) {
      #pragma GCC ivdep
      for (int64_t k = 0; k < beside; k++) {
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
  const int64_t count = units / a[6 + a[1]] * ((a[6 + a[1]] + 511) / 512), runs = 1, shares = splits > 1 ? count * splits : a[0];
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
