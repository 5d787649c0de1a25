
static void NAME_unit(const int64_t *a, char **slots, int64_t unit, int64_t split, int64_t run) {
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
  const int64_t width = a[6 + units], blocks = (a[6 + a[1]] + 511) / 512;
  const int64_t first = unit % blocks * 512;
  const int64_t n = width - first < 512 ? width - first : 512;
  const int64_t column = unit / blocks * width + first;
  mg_place(a, 2, column, place);
  char *const base0 = slots[operand[0 * pitch]] + place[0];
  char *const base1 = slots[operand[1 * pitch]] + place[1];
  float *p1 = (float *)(base1);
  double total2[512];
  #pragma GCC ivdep
  for (int64_t k = 0; k < n; k++) {
    total2[k] = 0;
  }
  if (splits == 1 || run == 0) {
    float lane2[512];
    mg_start(a, 2, loops, from, at, step, index);
    for (int64_t begin = from; begin < to;) {
      const int64_t stop = begin + 64 < to ? begin + 64 : to;
      #pragma GCC ivdep
      for (int64_t k = 0; k < n; k++) {
        lane2[k] = 0;
      }
      for (; begin < stop; begin++) {
        const float *p0 = (const float *)(base0 + at[0]);
        #pragma GCC ivdep
        for (int64_t k = 0; k < n; k++) {
          const float v0 = p0[k];
          const float v1 = v0 * v0;
          lane2[k] = v1 + lane2[k];
        }
        mg_next(a, 2, loops, at, step, index);
      }
      #pragma GCC ivdep
      for (int64_t k = 0; k < n; k++) {
        total2[k] = lane2[k] + total2[k];
      }
    }
  }
  if (splits > 1) {
    if (run == 0) {
      #pragma GCC ivdep
      for (int64_t k = 0; k < n; k++) {
        *(double *)(partial + 8 * (((column + k) * splits + split) * 1 + 0)) = total2[k];
      }
      return;
    }
    for (int64_t s = 0; s < splits; s++) {
      #pragma GCC ivdep
      for (int64_t k = 0; k < n; k++) {
        total2[k] = *(double *)(partial + 8 * (((column + k) * splits + s) * 1 + 0)) + total2[k];
      }
    }
  }
  float all2[512];
  #pragma GCC ivdep
  for (int64_t k = 0; k < n; k++) {
    const float v2 = total2[k];
    all2[k] = v2;
  }
  if (splits == 1 || run == 1) {
    #pragma GCC ivdep
    for (int64_t k = 0; k < n; k++) {
      const float v2 = all2[k];
      p1[k] = v2;
    }
  }
}
int NAME(const int64_t *a, char **slots) {
  int64_t units = 1;
  const int64_t splits = a[3];
  for (int64_t d = 0; d < a[1]; d++) units *= a[7 + d];
  const int64_t count = units / a[6 + a[1]] * ((a[6 + a[1]] + 511) / 512), runs = 1;
  if (a[0] <= 1) {
    for (int64_t u = 0; u < count; u++) NAME_unit(a, slots, u, 0, 0);
  } else {
    for (int64_t run = 0; run < runs; run++) {
      #pragma omp parallel for num_threads(a[0]) schedule(static)
      for (int64_t w = 0; w < count * splits; w++) NAME_unit(a, slots, w / splits, w % splits, run);
    }
  }
  if (splits > 1)
    for (int64_t u = 0; u < count; u++) NAME_unit(a, slots, u, 0, 1);
  return 0;
}
