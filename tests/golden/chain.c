
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
    (void)inner; (void)index; (void)row_offset; (void)split_end;
    const float v1 = *(const float *)(constants + 0);
    const float v2 = 0x1.0000000000000p+0;
    {
      const int64_t stream = a[4] && base1 != base0;
      int64_t begin = split_begin, col = split_begin - first_row * inner;
      mg_odometer_start(a, 2, loop_axes - 1, first_row, row_offset, row_stride, index);
      while (begin < split_end) {
        int64_t n = inner - col < split_end - begin ? inner - col : split_end - begin;
        const float *p0 = (const float *)(base0 + row_offset[0] + col * (int64_t)sizeof(float));
        float *p1 = (float *)(base1 + row_offset[1] + col * (int64_t)sizeof(float));
        for (int64_t first = 0, last; first < n; first = last) {
          float buffer1[256];
          float *out1 = stream ? buffer1 - first : p1;
          last = stream && n - first > 256 ? first + 256 - MG_MISALIGNMENT(p1 + first) : n;
          #pragma GCC ivdep
          for (int64_t j = first; j < last; j++) {
            const float v0 = p0[j];
            const float v3 = +(v0 * v1) + v2;
            const float v4 = tanhf(v3);
            const float v5 = v4 * v0;
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
