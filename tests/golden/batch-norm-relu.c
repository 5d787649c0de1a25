
MG_FOLD double mg_fold_sum_float32_float32(const float *lane) {
  float of32[32];
  for (int k = 0; k < 32; k++) of32[k] = lane[32 + k] + lane[k];
  float of16[16];
  for (int k = 0; k < 16; k++) of16[k] = of32[16 + k] + of32[k];
  double part[8];
  for (int k = 0; k < 8; k++) part[k] = (double)of16[8 + k] + (double)of16[k];
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
    char *const base1 = slots[operand[1 * pitch]] + place[1];
    const float *p1 = (const float *)(base1);
    char *const base2 = slots[operand[2 * pitch]] + place[2];
    const float *p2 = (const float *)(base2);
    char *const base3 = slots[operand[3 * pitch]] + place[3];
    const int fetch = splits == 1 && 4 * length <= 131072;
    const char *next0 = base0 + operand[0 * pitch + 1 + units];
    double total1;
    total1 = 0;
    double total5;
    total5 = 0;
    double total15;
    total15 = 0;
    const float v2 = *(const float *)(constants + 0);
    const float v6 = *(const float *)(constants + 1);
    const float v9 = 0x0.0p+0;
    const float v13 = *p1;
    const float v16 = *(const float *)(constants + 2);
    const float v20 = 0x0.0p+0;
    const float v23 = 0x0.0p+0;
    const float v25 = *(const float *)(constants + 3);
    const float v29 = *p2;
    if (splits == 1 || run == 0) {
      float lane1[64], none1 = 0;
      MG_HIDE(none1);
      for (int64_t k = 0; k < 64; k++) lane1[k] = none1;
      int64_t filled = 0;
      int64_t begin = from, col = from - first_row * inner;
      mg_start(a, 4, loops - 1, first_row, at, step, index);
      while (begin < to) {
        int64_t n = inner - col < to - begin ? inner - col : to - begin;
        const float *p0 = (const float *)(base0 + at[0] + col * (int64_t)sizeof(float));
        for (int64_t first = 0; first < n; first += 4096) {
          const int64_t last = n - first > 4096 ? first + 4096 : n;
          int64_t j = first;
          for (; j + 64 <= last; j += 64) {
            #pragma GCC unroll 16
            #pragma GCC ivdep
            for (int64_t k = 0; k < 64; k++) {
              const float v0 = p0[j + k];
              lane1[k] = v0 + lane1[k];
            }
          }
          #pragma GCC ivdep
          for (int64_t k = 0; k < last - j; k++) {
            const float v0 = p0[j + k];
            lane1[k] = v0 + lane1[k];
          }
          filled += (last - first + 63) / 64;
          if (filled >= 64) {
            filled = 0;
            const double all1 = mg_fold_sum_float32_float32(lane1);
            total1 = all1 + total1;
            for (int64_t k = 0; k < 64; k++) lane1[k] = none1;
          }
        }
        begin += n;
        if ((col += n) == inner) {
          col = 0;
          mg_next(a, 4, loops - 1, at, step, index);
        }
      }
      const double all1 = mg_fold_sum_float32_float32(lane1);
      total1 = all1 + total1;
    }
    if (splits > 1) {
      if (run == 0) {
        *(double *)(partial + 8 * ((unit * splits + split) * 3 + 0)) = total1;
        return;
      }
      for (int64_t s = 0; s < splits; s++) {
        total1 = *(double *)(partial + 8 * ((unit * splits + s) * 3 + 0)) + total1;
      }
    }
    const float v1 = total1;
    const float v3 = v1 / v2;
    if (splits == 1 || run == 1) {
      float lane5[64], none5 = 0;
      MG_HIDE(none5);
      float lane15[64], none15 = 0;
      MG_HIDE(none15);
      for (int64_t k = 0; k < 64; k++) lane5[k] = none5;
      for (int64_t k = 0; k < 64; k++) lane15[k] = none15;
      int64_t filled = 0;
      int64_t begin = from, col = from - first_row * inner;
      mg_start(a, 4, loops - 1, first_row, at, step, index);
      while (begin < to) {
        int64_t n = inner - col < to - begin ? inner - col : to - begin;
        const float *p0 = (const float *)(base0 + at[0] + col * (int64_t)sizeof(float));
        for (int64_t first = 0; first < n; first += 4096) {
          const int64_t last = n - first > 4096 ? first + 4096 : n;
          int64_t j = first;
          for (; j + 64 <= last; j += 64) {
            if (fetch) mg_fetch(next0 + at[0] + (col + j) * 4, (64) * 4);
            #pragma GCC unroll 16
            #pragma GCC ivdep
            for (int64_t k = 0; k < 64; k++) {
              const float v0 = p0[j + k];
              const float v4 = v0 - v3;
              const float v14 = v4 * v4;
              lane5[k] = v4 + lane5[k];
              lane15[k] = v14 + lane15[k];
            }
          }
          #pragma GCC ivdep
          for (int64_t k = 0; k < last - j; k++) {
            const float v0 = p0[j + k];
            const float v4 = v0 - v3;
            const float v14 = v4 * v4;
            lane5[k] = v4 + lane5[k];
            lane15[k] = v14 + lane15[k];
          }
          filled += (last - first + 63) / 64;
          if (filled >= 64) {
            filled = 0;
            const double all5 = mg_fold_sum_float32_float32(lane5);
            total5 = all5 + total5;
            const double all15 = mg_fold_sum_float32_float32(lane15);
            total15 = all15 + total15;
            for (int64_t k = 0; k < 64; k++) lane5[k] = none5;
            for (int64_t k = 0; k < 64; k++) lane15[k] = none15;
          }
        }
        begin += n;
        if ((col += n) == inner) {
          col = 0;
          mg_next(a, 4, loops - 1, at, step, index);
        }
      }
      const double all5 = mg_fold_sum_float32_float32(lane5);
      total5 = all5 + total5;
      const double all15 = mg_fold_sum_float32_float32(lane15);
      total15 = all15 + total15;
    }
    if (splits > 1) {
      if (run == 1) {
        *(double *)(partial + 8 * ((unit * splits + split) * 3 + 1)) = total5;
        *(double *)(partial + 8 * ((unit * splits + split) * 3 + 2)) = total15;
        return;
      }
      for (int64_t s = 0; s < splits; s++) {
        total5 = *(double *)(partial + 8 * ((unit * splits + s) * 3 + 1)) + total5;
        total15 = *(double *)(partial + 8 * ((unit * splits + s) * 3 + 2)) + total15;
      }
    }
    const float v5 = total5;
    const float v7 = v5 / v6;
    const uint8_t v8 = (v7 - v7 == v7 - v7) != 0;
    const float v10 = (v8 ? v7 : v9);
    const float v11 = v3 + v10;
    const float v15 = total15;
    const float v17 = v15 / v16;
    const float v18 = v10 * v10;
    const uint8_t v19 = (v18 - v18 == v18 - v18) != 0;
    const float v21 = (v19 ? v18 : v20);
    const float v22 = v17 - v21;
    const float v24 = (v22 <= v23 || v23 != v23 ? v23 : v22);
    const float v26 = v24 + v25;
    const float v27 = 1 / sqrtf(v26);
    const float v28 = v13 * v27;
    if (splits == 1 || run == 2) {
      const int64_t stream = a[4] && base3 != base0;
      int64_t begin = from, col = from - first_row * inner;
      mg_start(a, 4, loops - 1, first_row, at, step, index);
      while (begin < to) {
        int64_t n = inner - col < to - begin ? inner - col : to - begin;
        const float *p0 = (const float *)(base0 + at[0] + col * (int64_t)sizeof(float));
        float *p3 = (float *)(base3 + at[3] + col * (int64_t)sizeof(float));
        for (int64_t first = 0, last; first < n; first = last) {
          float piece3[256];
          float *out3 = stream ? piece3 - first : p3;
          last = stream && n - first > 256 ? first + 256 - MG_PAST(p3 + first) : n;
          #pragma GCC ivdep
          for (int64_t j = first; j < last; j++) {
            const float v0 = p0[j];
            const float v12 = v0 - v11;
            const float v30 = +(v12 * v28) + v29;
            const float v31 = (v30 < 0 ? 0 : v30);
            out3[j] = v31;
          }
          if (stream) mg_stream(p3 + first, piece3, (last - first) * sizeof *piece3);
        }
        begin += n;
        if ((col += n) == inner) {
          col = 0;
          mg_next(a, 4, loops - 1, at, step, index);
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
