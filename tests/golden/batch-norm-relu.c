
MG_FOLD double mg_fold_sum_float32_float32(const float *lane) {
  float folded32[32];
  for (int k = 0; k < 32; k++) folded32[k] = lane[32 + k] + lane[k];
  float folded16[16];
  for (int k = 0; k < 16; k++) folded16[k] = folded32[16 + k] + folded32[k];
  double part[8];
  for (int k = 0; k < 8; k++) part[k] = (double)folded16[8 + k] + (double)folded16[k];
  for (int k = 0; k < 4; k++) part[k] = part[4 + k] + part[k];
  for (int k = 0; k < 2; k++) part[k] = part[2 + k] + part[k];
  for (int k = 0; k < 1; k++) part[k] = part[1 + k] + part[k];
  return part[0];
}

static void NAME_units(const int64_t *a, char **slots, int64_t unit, int64_t end, int64_t split, int64_t run) {
  const int64_t unit_axes = a[1], loop_axes = a[2], splits = a[3];
  const int64_t record = unit_axes + loop_axes + 2;
  const int64_t *extent = a + 7 + unit_axes, *operand = extent + loop_axes;
  const int64_t *constants = operand + 4 * record;
  char *const partial = slots[a[5]] + a[6];
  int64_t unit_offset[4], row_offset[4], row_stride[4];
  int64_t index[MG_MAX_RANK], length = 1;
  for (int64_t d = 0; d < loop_axes; d++) length *= extent[d];
  const int64_t split_length = ((length + splits - 1) / splits + 63) / 64 * 64;
  const int64_t split_begin = split_length * split < length ? split_length * split : length;
  const int64_t split_end = split_begin + split_length < length ? split_begin + split_length : length;
  (void)partial; (void)constants; (void)run;
  for (; unit < end; unit++) {
    const int64_t inner = extent[loop_axes - 1];
    const int64_t first_row = split_begin ? split_begin / inner : 0;
    mg_unit_offsets(a, 4, unit, unit_offset);
    char *const base0 = slots[operand[0 * record]] + unit_offset[0];
    char *const base1 = slots[operand[1 * record]] + unit_offset[1];
    const float *p1 = (const float *)(base1);
    char *const base2 = slots[operand[2 * record]] + unit_offset[2];
    const float *p2 = (const float *)(base2);
    char *const base3 = slots[operand[3 * record]] + unit_offset[3];
    const int prefetch = splits == 1 && 4 * length <= 131072;
    const char *next0 = base0 + operand[0 * record + 1 + unit_axes];
    double total1;
    double total5;
    double total15;
    total1 = 0;
    total5 = 0;
    total15 = 0;
    (void)inner; (void)index; (void)row_offset; (void)split_end;
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
      float lane1[64], identity1 = 0;
      MG_OPAQUE(identity1);
      for (int64_t k = 0; k < 64; k++) lane1[k] = identity1;
      int64_t accumulated = 0;
      int64_t begin = split_begin, col = split_begin - first_row * inner;
      mg_odometer_start(a, 4, loop_axes - 1, first_row, row_offset, row_stride, index);
      while (begin < split_end) {
        int64_t n = inner - col < split_end - begin ? inner - col : split_end - begin;
        const float *p0 = (const float *)(base0 + row_offset[0] + col * (int64_t)sizeof(float));
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
          accumulated += (last - first + 63) / 64;
          if (accumulated >= 64) {
            accumulated = 0;
            const double folded1 = mg_fold_sum_float32_float32(lane1);
            total1 = folded1 + total1;
            for (int64_t k = 0; k < 64; k++) lane1[k] = identity1;
          }
        }
        begin += n;
        if ((col += n) == inner) {
          col = 0;
          mg_odometer_advance(a, 4, loop_axes - 1, row_offset, row_stride, index);
        }
      }
      const double folded1 = mg_fold_sum_float32_float32(lane1);
      total1 = folded1 + total1;
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
      float lane5[64], identity5 = 0;
      MG_OPAQUE(identity5);
      float lane15[64], identity15 = 0;
      MG_OPAQUE(identity15);
      for (int64_t k = 0; k < 64; k++) lane5[k] = identity5;
      for (int64_t k = 0; k < 64; k++) lane15[k] = identity15;
      int64_t accumulated = 0;
      int64_t begin = split_begin, col = split_begin - first_row * inner;
      mg_odometer_start(a, 4, loop_axes - 1, first_row, row_offset, row_stride, index);
      while (begin < split_end) {
        int64_t n = inner - col < split_end - begin ? inner - col : split_end - begin;
        const float *p0 = (const float *)(base0 + row_offset[0] + col * (int64_t)sizeof(float));
        for (int64_t first = 0; first < n; first += 4096) {
          const int64_t last = n - first > 4096 ? first + 4096 : n;
          int64_t j = first;
          for (; j + 64 <= last; j += 64) {
            if (prefetch) mg_prefetch(next0 + row_offset[0] + (col + j) * 4, (64) * 4);
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
          accumulated += (last - first + 63) / 64;
          if (accumulated >= 64) {
            accumulated = 0;
            const double folded5 = mg_fold_sum_float32_float32(lane5);
            total5 = folded5 + total5;
            const double folded15 = mg_fold_sum_float32_float32(lane15);
            total15 = folded15 + total15;
            for (int64_t k = 0; k < 64; k++) lane5[k] = identity5;
            for (int64_t k = 0; k < 64; k++) lane15[k] = identity15;
          }
        }
        begin += n;
        if ((col += n) == inner) {
          col = 0;
          mg_odometer_advance(a, 4, loop_axes - 1, row_offset, row_stride, index);
        }
      }
      const double folded5 = mg_fold_sum_float32_float32(lane5);
      total5 = folded5 + total5;
      const double folded15 = mg_fold_sum_float32_float32(lane15);
      total15 = folded15 + total15;
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
      int64_t begin = split_begin, col = split_begin - first_row * inner;
      mg_odometer_start(a, 4, loop_axes - 1, first_row, row_offset, row_stride, index);
      while (begin < split_end) {
        int64_t n = inner - col < split_end - begin ? inner - col : split_end - begin;
        const float *p0 = (const float *)(base0 + row_offset[0] + col * (int64_t)sizeof(float));
        float *p3 = (float *)(base3 + row_offset[3] + col * (int64_t)sizeof(float));
        for (int64_t first = 0, last; first < n; first = last) {
          float buffer3[256];
          float *out3 = stream ? buffer3 - first : p3;
          last = stream && n - first > 256 ? first + 256 - MG_MISALIGNMENT(p3 + first) : n;
          #pragma GCC ivdep
          for (int64_t j = first; j < last; j++) {
            const float v0 = p0[j];
            const float v12 = v0 - v11;
            const float v30 = +(v12 * v28) + v29;
            const float v31 = (v30 < 0 ? 0 : v30);
            out3[j] = v31;
          }
          if (stream) mg_stream_copy(p3 + first, buffer3, (last - first) * sizeof *buffer3);
        }
        begin += n;
        if ((col += n) == inner) {
          col = 0;
          mg_odometer_advance(a, 4, loop_axes - 1, row_offset, row_stride, index);
        }
      }
    }
  }
  if (a[4]) mg_fence();
}

int NAME(const int64_t *a, char **slots) {
  int64_t units = 1;
  const int64_t splits = a[3];
  for (int64_t d = 0; d < a[1]; d++) units *= a[7 + d];
  const int64_t count = units, runs = splits > 1 ? 3 : 1, tasks = splits > 1 ? count * splits : a[0];
  if (a[0] <= 1) {
    NAME_units(a, slots, 0, count, 0, 0);
  } else {
    for (int64_t run = 0; run < runs; run++) {
      #pragma omp parallel for num_threads(a[0]) schedule(static)
      for (int64_t task = 0; task < tasks; task++) {
        const int64_t begin = splits > 1 ? task / splits : count * task / tasks;
        const int64_t end = splits > 1 ? begin + 1 : count * (task + 1) / tasks;
        NAME_units(a, slots, begin, end, task % splits, run);
      }
    }
  }
  return 0;
}
