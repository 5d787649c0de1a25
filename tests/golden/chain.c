
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
    const float v1 = *(const float *)(constants + 0);
    const float v2 = 0x1.0000000000000p+0;
    {
      const int64_t stream = a[4] && base1 != base0;
      int64_t begin = from, col = from - first_row * inner;
      mg_start(a, 2, loops - 1, first_row, at, step, index);
      while (begin < to) {
        int64_t n = inner - col < to - begin ? inner - col : to - begin;
        const float *p0 = (const float *)(base0 + at[0] + col * (int64_t)sizeof(float));
        float *p1 = (float *)(base1 + at[1] + col * (int64_t)sizeof(float));
        for (int64_t first = 0, last; first < n; first = last) {
          float piece1[256];
          float *out1 = stream ? piece1 - first : p1;
          last = stream && n - first > 256 ? first + 256 - MG_PAST(p1 + first) : n;
          #pragma GCC ivdep
          for (int64_t j = first; j < last; j++) {
            const float v0 = p0[j];
            const float v3 = +(v0 * v1) + v2;
            const float v4 = tanhf(v3);
            const float v5 = v4 * v0;
            out1[j] = v5;
          }
          if (stream) mg_stream(p1 + first, piece1, (last - first) * sizeof *piece1);
        }
        begin += n;
        if ((col += n) == inner) {
          col = 0;
          mg_next(a, 2, loops - 1, at, step, index);
        }
      }
    }
    (void)inner; (void)index; (void)at; (void)to;
  }
  if (a[4]) mg_fence();
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
  return 0;
}
