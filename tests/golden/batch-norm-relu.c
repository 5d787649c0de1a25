
MG_FOLD double mg_fold_sum_float32_float32(const float *lane) {
  double part[32];
  for (int k = 0; k < 32; k++) part[k] = (double)lane[32 + k] + (double)lane[k];
  for (int k = 0; k < 16; k++) part[k] = part[16 + k] + part[k];
  for (int k = 0; k < 8; k++) part[k] = part[8 + k] + part[k];
  for (int k = 0; k < 4; k++) part[k] = part[4 + k] + part[k];
  for (int k = 0; k < 2; k++) part[k] = part[2 + k] + part[k];
  for (int k = 0; k < 1; k++) part[k] = part[1 + k] + part[k];
  return part[0];
}

static void NAME_units(const int64_t *a, char **slots, int64_t unit, int64_t end, int64_t split, int64_t run) {
  const int64_t units = a[1], loops = a[2], splits = a[3];
  const int64_t pitch = units + loops + 2;
  const int64_t *extent = a + 7 + units, *operand = extent + loops;
  const int64_t *constants = operand + 4 * pitch;
  char *const partial = slots[a[5]] + a[6];
  int64_t place[4], at[4], step[4], index[MG_MAX_RANK], length = 1;
  for (int64_t d = 0; d < loops; d++) length *= extent[d];
  const int64_t share = ((length + splits - 1) / splits + 63) / 64 * 64;
  const int64_t from = share * split < length ? share * split : length;
  const int64_t to = from + share < length ? from + share : length;
  (void)partial; (void)constants; (void)run;
  for (; unit < end; unit++) {
    const int64_t inner = extent[loops - 1], first_row = from ? from / inner : 0;
    mg_place(a, 4, unit, place);
    char *const base0 = slots[operand[0 * pitch]] + place[0];
    const float *p0 = (const float *)(base0);
    char *const base1 = slots[operand[1 * pitch]] + place[1];
    char *const base2 = slots[operand[2 * pitch]] + place[2];
    const float *p2 = (const float *)(base2);
    char *const base3 = slots[operand[3 * pitch]] + place[3];
    const int fetch = splits == 1 && 4 * length <= 131072;
    const char *next1 = base1 + operand[1 * pitch + 1 + units];
    double total2;
    total2 = 0;
    double total6;
    total6 = 0;
    double total10;
    total10 = 0;
    const float v0 = *p0;
    const float v3 = *(const float *)(constants + 0);
    const float v7 = *(const float *)(constants + 1);
    const float v11 = *(const float *)(constants + 2);
    const float v14 = 0x0.0p+0;
    const float v16 = *(const float *)(constants + 3);
    const float v21 = 0x0.0p+0;
    const float v25 = *p2;
    if (splits == 1 || run == 0) {
      float lane2[64], none2 = 0;
      MG_HIDE(none2);
      for (int64_t k = 0; k < 64; k++) lane2[k] = none2;
      int64_t filled = 0;
      int64_t begin = from, col = from - first_row * inner;
      mg_start(a, 4, loops - 1, first_row, at, step, index);
      while (begin < to) {
        const int64_t n = inner - col < to - begin ? inner - col : to - begin;
        const float *p1 = (const float *)(base1 + at[1] + col * (int64_t)sizeof(float));
        for (int64_t first = 0; first < n; first += 4096) {
          const int64_t last = n - first > 4096 ? first + 4096 : n;
          int64_t j = first;
          for (; j + 64 <= last; j += 64) {
            #pragma GCC unroll 16
            #pragma GCC ivdep
            for (int64_t k = 0; k < 64; k++) {
              const float v1 = p1[j + k];
              lane2[k] = v1 + lane2[k];
            }
          }
          #pragma GCC ivdep
          for (int64_t k = 0; k < last - j; k++) {
            const float v1 = p1[j + k];
            lane2[k] = v1 + lane2[k];
          }
          filled += (last - first + 63) / 64;
          if (filled >= 64) {
            filled = 0;
            total2 = mg_fold_sum_float32_float32(lane2) + total2;
            for (int64_t k = 0; k < 64; k++) lane2[k] = none2;
          }
        }
        begin += n;
        col = 0;
        mg_next(a, 4, loops - 1, at, step, index);
      }
      total2 = mg_fold_sum_float32_float32(lane2) + total2;
    }
    if (splits > 1) {
      if (run == 0) {
        *(double *)(partial + 8 * ((unit * splits + split) * 3 + 0)) = total2;
        return;
      }
      for (int64_t s = 0; s < splits; s++) {
        total2 = *(double *)(partial + 8 * ((unit * splits + s) * 3 + 0)) + total2;
      }
    }
    const float v2 = total2;
    const float v4 = v2 / v3;
    if (splits == 1 || run == 1) {
      float lane6[64], none6 = 0;
      MG_HIDE(none6);
      float lane10[64], none10 = 0;
      MG_HIDE(none10);
      for (int64_t k = 0; k < 64; k++) lane6[k] = none6;
      for (int64_t k = 0; k < 64; k++) lane10[k] = none10;
      int64_t filled = 0;
      int64_t begin = from, col = from - first_row * inner;
      mg_start(a, 4, loops - 1, first_row, at, step, index);
      while (begin < to) {
        const int64_t n = inner - col < to - begin ? inner - col : to - begin;
        const float *p1 = (const float *)(base1 + at[1] + col * (int64_t)sizeof(float));
        for (int64_t first = 0; first < n; first += 4096) {
          const int64_t last = n - first > 4096 ? first + 4096 : n;
          int64_t j = first;
          for (; j + 64 <= last; j += 64) {
            if (fetch) mg_fetch(next1 + at[1] + (col + j) * 4, (64) * 4);
            #pragma GCC unroll 16
            #pragma GCC ivdep
            for (int64_t k = 0; k < 64; k++) {
              const float v1 = p1[j + k];
              const float v5 = v1 - v4;
              const float v9 = v5 * v5;
              lane6[k] = v5 + lane6[k];
              lane10[k] = v9 + lane10[k];
            }
          }
          #pragma GCC ivdep
          for (int64_t k = 0; k < last - j; k++) {
            const float v1 = p1[j + k];
            const float v5 = v1 - v4;
            const float v9 = v5 * v5;
            lane6[k] = v5 + lane6[k];
            lane10[k] = v9 + lane10[k];
          }
          filled += (last - first + 63) / 64;
          if (filled >= 64) {
            filled = 0;
            total6 = mg_fold_sum_float32_float32(lane6) + total6;
            total10 = mg_fold_sum_float32_float32(lane10) + total10;
            for (int64_t k = 0; k < 64; k++) lane6[k] = none6;
            for (int64_t k = 0; k < 64; k++) lane10[k] = none10;
          }
        }
        begin += n;
        col = 0;
        mg_next(a, 4, loops - 1, at, step, index);
      }
      total6 = mg_fold_sum_float32_float32(lane6) + total6;
      total10 = mg_fold_sum_float32_float32(lane10) + total10;
    }
    if (splits > 1) {
      if (run == 1) {
        *(double *)(partial + 8 * ((unit * splits + split) * 3 + 1)) = total6;
        *(double *)(partial + 8 * ((unit * splits + split) * 3 + 2)) = total10;
        return;
      }
      for (int64_t s = 0; s < splits; s++) {
        total6 = *(double *)(partial + 8 * ((unit * splits + s) * 3 + 1)) + total6;
        total10 = *(double *)(partial + 8 * ((unit * splits + s) * 3 + 2)) + total10;
      }
    }
    const float v6 = total6;
    const float v8 = v6 / v7;
    const float v10 = total10;
    const float v12 = v10 / v11;
    const float v13 = fmaf(-v8, v8, +v12);
    const float v15 = (v13 > v14 || v13 != v13 ? v13 : v14);
    const float v17 = v15 + v16;
    const float v18 = 1 / sqrtf(v17);
    const float v19 = v0 * v18;
    const uint8_t v20 = (v8 - v8 == v8 - v8) != 0;
    const float v22 = (v20 ? v8 : v21);
    const float v23 = v4 + v22;
    if (splits == 1 || run == 2) {
      const int64_t stream = a[4] && base3 != base1;
      int64_t begin = from, col = from - first_row * inner;
      mg_start(a, 4, loops - 1, first_row, at, step, index);
      while (begin < to) {
        const int64_t n = inner - col < to - begin ? inner - col : to - begin;
        const float *p1 = (const float *)(base1 + at[1] + col * (int64_t)sizeof(float));
        float *p3 = (float *)(base3 + at[3] + col * (int64_t)sizeof(float));
        for (int64_t first = 0, last; first < n; first = last) {
          float piece3[256];
          float *out3 = stream ? piece3 - first : p3;
          last = stream && n - first > 256 ? first + 256 - MG_PAST(p3 + first) : n;
          #pragma GCC ivdep
          for (int64_t j = first; j < last; j++) {
            const float v1 = p1[j];
            const float v24 = v1 - v23;
            const float v26 = fmaf(+v19, v24, +v25);
            const float v27 = (v26 < 0 ? 0 : v26);
            out3[j] = v27;
          }
          if (stream) mg_stream(p3 + first, piece3, (last - first) * sizeof *piece3);
        }
        begin += n;
        col = 0;
        mg_next(a, 4, loops - 1, at, step, index);
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
  const int64_t count = units, runs = splits > 1 ? 3 : 1, shares = splits > 1 ? count * splits : a[0];
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
