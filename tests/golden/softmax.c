
MG_FOLD float mg_fold_max_float32_float32(const float *lane) {
  float part[32];
  for (int k = 0; k < 32; k++) part[k] = (((float)lane[32 + k] > (float)lane[k]) | ((float)lane[32 + k] != (float)lane[32 + k]) ? (float)lane[32 + k] : (float)lane[k]);
  for (int k = 0; k < 16; k++) part[k] = ((part[16 + k] > part[k]) | (part[16 + k] != part[16 + k]) ? part[16 + k] : part[k]);
  for (int k = 0; k < 8; k++) part[k] = ((part[8 + k] > part[k]) | (part[8 + k] != part[8 + k]) ? part[8 + k] : part[k]);
  for (int k = 0; k < 4; k++) part[k] = ((part[4 + k] > part[k]) | (part[4 + k] != part[4 + k]) ? part[4 + k] : part[k]);
  float shuffled2[4] = {part[2], part[3], part[0], part[1]}, folded2[4];
  for (int k = 0; k < 4; k++) folded2[k] = ((shuffled2[k] > part[k]) | (shuffled2[k] != shuffled2[k]) ? shuffled2[k] : part[k]);
  float shuffled1[4] = {folded2[1], folded2[0], folded2[3], folded2[2]}, folded1[4];
  for (int k = 0; k < 4; k++) folded1[k] = ((shuffled1[k] > folded2[k]) | (shuffled1[k] != shuffled1[k]) ? shuffled1[k] : folded2[k]);
  return folded1[0];
}

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
  const int64_t *constants = operand + 2 * record;
  char *const partial = slots[a[5]] + a[6];
  int64_t unit_offset[2], row_offset[2], row_stride[2];
  int64_t index[MG_MAX_RANK], length = 1;
  for (int64_t d = 0; d < loop_axes; d++) length *= extent[d];
  const int64_t split_length = ((length + splits - 1) / splits + 63) / 64 * 64;
  const int64_t split_begin = split_length * split < length ? split_length * split : length;
  const int64_t split_end = split_begin + split_length < length ? split_begin + split_length : length;
  (void)partial; (void)constants; (void)run;
  for (; unit < end; unit++) {
    const int64_t inner = extent[loop_axes - 1];
    const int64_t first_row = split_begin ? split_begin / inner : 0;
    mg_unit_offsets(a, 2, unit, unit_offset);
    char *const base0 = slots[operand[0 * record]] + unit_offset[0];
    char *const base1 = slots[operand[1 * record]] + unit_offset[1];
    const int prefetch = splits == 1 && 4 * length <= 131072;
    const char *next0 = base0 + operand[0 * record + 1 + unit_axes];
    float total1;
    double total4;
    total1 = -INFINITY;
    total4 = 0;
    const int64_t row_length = (length + 63) / 64 * 64;
    char *const rows = partial + (a[0] > 1 ? omp_get_thread_num() : 0) * 4 * row_length;
    float *restrict const row3 = (float *)(rows + 0 * row_length);
    (void)inner; (void)index; (void)row_offset; (void)split_end;
    {
      float lane1[64], identity1 = -INFINITY;
      MG_OPAQUE(identity1);
      for (int64_t k = 0; k < 64; k++) lane1[k] = identity1;
      int64_t accumulated = 0;
      int64_t begin = split_begin, col = split_begin - first_row * inner;
      mg_odometer_start(a, 2, loop_axes - 1, first_row, row_offset, row_stride, index);
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
              lane1[k] = ((v0 > lane1[k]) | (v0 != v0) ? v0 : lane1[k]);
            }
          }
          #pragma GCC ivdep
          for (int64_t k = 0; k < last - j; k++) {
            const float v0 = p0[j + k];
            lane1[k] = ((v0 > lane1[k]) | (v0 != v0) ? v0 : lane1[k]);
          }
          accumulated += (last - first + 63) / 64;
          if (accumulated >= 64) {
            accumulated = 0;
            const float folded1 = mg_fold_max_float32_float32(lane1);
            total1 = ((folded1 > total1) | (folded1 != folded1) ? folded1 : total1);
            for (int64_t k = 0; k < 64; k++) lane1[k] = identity1;
          }
        }
        begin += n;
        if ((col += n) == inner) {
          col = 0;
          mg_odometer_advance(a, 2, loop_axes - 1, row_offset, row_stride, index);
        }
      }
      const float folded1 = mg_fold_max_float32_float32(lane1);
      total1 = ((folded1 > total1) | (folded1 != folded1) ? folded1 : total1);
    }
    const float v1 = total1;
    {
      float lane4[64], identity4 = 0;
      MG_OPAQUE(identity4);
      for (int64_t k = 0; k < 64; k++) lane4[k] = identity4;
      int64_t accumulated = 0;
      int64_t begin = split_begin, col = split_begin - first_row * inner;
      mg_odometer_start(a, 2, loop_axes - 1, first_row, row_offset, row_stride, index);
      while (begin < split_end) {
        int64_t n = inner - col < split_end - begin ? inner - col : split_end - begin;
        const float *p0 = (const float *)(base0 + row_offset[0] + col * (int64_t)sizeof(float));
        for (int64_t first = 0; first < n; first += 4096) {
          const int64_t last = n - first > 4096 ? first + 4096 : n;
          int64_t j = first;
          for (; j + 64 <= last; j += 64) {
            if (prefetch) mg_prefetch(next0 + row_offset[0] + (col + j) * 4, (64) * 4);
            #pragma GCC ivdep
            for (int64_t k = 0; k < 64; k++) {
              const float v0 = p0[j + k];
              const float v2 = v0 - v1;
              const float v3 = expf(v2);
              row3[begin + j + k] = v3;
              lane4[k] = v3 + lane4[k];
            }
          }
          #pragma GCC ivdep
          for (int64_t k = 0; k < last - j; k++) {
            const float v0 = p0[j + k];
            const float v2 = v0 - v1;
            const float v3 = expf(v2);
            row3[begin + j + k] = v3;
            lane4[k] = v3 + lane4[k];
          }
          accumulated += (last - first + 63) / 64;
          if (accumulated >= 64) {
            accumulated = 0;
            const double folded4 = mg_fold_sum_float32_float32(lane4);
            total4 = folded4 + total4;
            for (int64_t k = 0; k < 64; k++) lane4[k] = identity4;
          }
        }
        begin += n;
        if ((col += n) == inner) {
          col = 0;
          mg_odometer_advance(a, 2, loop_axes - 1, row_offset, row_stride, index);
        }
      }
      const double folded4 = mg_fold_sum_float32_float32(lane4);
      total4 = folded4 + total4;
    }
    const float v4 = total4;
    {
      const int64_t stream = a[4] && base1 != base0;
      int64_t begin = split_begin, col = split_begin - first_row * inner;
      mg_odometer_start(a, 2, loop_axes - 1, first_row, row_offset, row_stride, index);
      while (begin < split_end) {
        int64_t n = inner - col < split_end - begin ? inner - col : split_end - begin;
        float *p1 = (float *)(base1 + row_offset[1] + col * (int64_t)sizeof(float));
        for (int64_t first = 0, last; first < n; first = last) {
          float buffer1[256];
          float *out1 = stream ? buffer1 - first : p1;
          last = stream && n - first > 256 ? first + 256 - MG_MISALIGNMENT(p1 + first) : n;
          #pragma GCC ivdep
          for (int64_t j = first; j < last; j++) {
            const float v3 = row3[begin + j];
            const float v5 = v3 / v4;
            out1[j] = v5;
          }
          if (stream) mg_stream_copy(p1 + first, buffer1, (last - first) * sizeof *buffer1);
        }
        begin += n;
        if ((col += n) == inner) {
          col = 0;
          mg_odometer_advance(a, 2, loop_axes - 1, row_offset, row_stride, index);
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
  const int64_t count = units, runs = 1, tasks = splits > 1 ? count * splits : a[0];
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
