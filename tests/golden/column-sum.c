
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
    const int64_t width = a[6 + unit_axes], blocks = (width + 511) / 512;
    const int64_t first = unit % blocks * 512;
    const int64_t unit_width = width - first < 512 ? width - first : 512;
    const int64_t column = unit / blocks * width + first;
    mg_unit_offsets(a, 2, column, unit_offset);
    char *const base0 = slots[operand[0 * record]] + unit_offset[0];
    char *const base1 = slots[operand[1 * record]] + unit_offset[1];
    float *p1 = (float *)(base1);
    double total2[512];
    #pragma GCC ivdep
    for (int64_t k = 0; k < unit_width; k++) {
      total2[k] = 0;
    }
    if (splits == 1 || run == 0) {
      float lane2[512];
      int64_t accumulated = 0;
      #pragma GCC ivdep
      for (int64_t k = 0; k < unit_width; k++) {
        lane2[k] = 0;
      }
      const int64_t inner = extent[loop_axes - 1], first_row = split_begin / inner;
      const int64_t inner_stride0 = operand[0 * record + record - 1];
      int64_t begin = split_begin, col = split_begin - first_row * inner;
      mg_odometer_start(a, 2, loop_axes - 1, first_row, row_offset, row_stride, index);
      while (begin < split_end) {
        int64_t n = inner - col < split_end - begin ? inner - col : split_end - begin;
        if (n > 64 - accumulated) n = 64 - accumulated;
        char *row0 = base0 + row_offset[0] + col * inner_stride0;
        int64_t i = 0;
        for (; i + 4 <= n; i += 4) {
          #pragma GCC ivdep
          for (int64_t k = 0; k < unit_width; k++) {
            float acc2 = lane2[k];
            #pragma GCC unroll 4
            for (int u = 0; u < 4; u++) {
              const float *p0 = (const float *)(row0 + (i + u) * inner_stride0);
              const float v0 = p0[k];
              const float v1 = v0 * v0;
              acc2 = v1 + acc2;
            }
            lane2[k] = acc2;
          }
        }
        for (; i < n; i++) {
          const float *p0 = (const float *)(row0 + i * inner_stride0);
          #pragma GCC ivdep
          for (int64_t k = 0; k < unit_width; k++) {
            float acc2 = lane2[k];
            const float v0 = p0[k];
            const float v1 = v0 * v0;
            acc2 = v1 + acc2;
            lane2[k] = acc2;
          }
        }
        begin += n;
        if ((col += n) == inner) {
          col = 0;
          mg_odometer_advance(a, 2, loop_axes - 1, row_offset, row_stride, index);
        }
        if ((accumulated += n) == 64 || begin == split_end) {
          accumulated = 0;
          #pragma GCC ivdep
          for (int64_t k = 0; k < unit_width; k++) {
            total2[k] = lane2[k] + total2[k];
            lane2[k] = 0;
          }
        }
      }
    }
    if (splits > 1) {
      if (run == 0) {
        #pragma GCC ivdep
        for (int64_t k = 0; k < unit_width; k++) {
          *(double *)(partial + 8 * (((column + k) * splits + split) * 1 + 0)) = total2[k];
        }
        return;
      }
      for (int64_t s = 0; s < splits; s++) {
        #pragma GCC ivdep
        for (int64_t k = 0; k < unit_width; k++) {
          total2[k] = *(double *)(partial + 8 * (((column + k) * splits + s) * 1 + 0)) + total2[k];
        }
      }
    }
    float wide2[512];
    #pragma GCC ivdep
    for (int64_t k = 0; k < unit_width; k++) {
      const float v2 = total2[k];
      wide2[k] = v2;
    }
    if (splits == 1 || run == 1) {
      #pragma GCC ivdep
      for (int64_t k = 0; k < unit_width; k++) {
        const float v2 = wide2[k];
        p1[k] = v2;
      }
    }
  }
}

int NAME(const int64_t *a, char **slots) {
  int64_t units = 1;
  const int64_t splits = a[3];
  for (int64_t d = 0; d < a[1]; d++) units *= a[7 + d];
  const int64_t count = units / a[6 + a[1]] * ((a[6 + a[1]] + 511) / 512), runs = 1, tasks = splits > 1 ? count * splits : a[0];
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
  if (splits > 1)
    for (int64_t u = 0; u < count; u++) NAME_units(a, slots, u, u + 1, 0, 1);
  return 0;
}
