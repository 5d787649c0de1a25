
MG_FOLD float mg_fold_max_float32_float32(const float *lane) {
  float part[32];
  for (int k = 0; k < 32; k++) part[k] = (((float)lane[32 + k] > (float)lane[k]) | ((float)lane[32 + k] != (float)lane[32 + k]) ? (float)lane[32 + k] : (float)lane[k]);
  for (int k = 0; k < 16; k++) part[k] = ((part[16 + k] > part[k]) | (part[16 + k] != part[16 + k]) ? part[16 + k] : part[k]);
  for (int k = 0; k < 8; k++) part[k] = ((part[8 + k] > part[k]) | (part[8 + k] != part[8 + k]) ? part[8 + k] : part[k]);
  for (int k = 0; k < 4; k++) part[k] = ((part[4 + k] > part[k]) | (part[4 + k] != part[4 + k]) ? part[4 + k] : part[k]);
  float other2[4] = {part[2], part[3], part[0], part[1]}, by2[4];
  for (int k = 0; k < 4; k++) by2[k] = ((other2[k] > part[k]) | (other2[k] != other2[k]) ? other2[k] : part[k]);
  float other1[4] = {by2[1], by2[0], by2[3], by2[2]}, by1[4];
  for (int k = 0; k < 4; k++) by1[k] = ((other1[k] > by2[k]) | (other1[k] != other1[k]) ? other1[k] : by2[k]);
  return by1[0];
}

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
    const int fetch = splits == 1 && 4 * length <= 131072;
    const char *next0 = base0 + operand[0 * pitch + 1 + units];
    float total1;
    total1 = -INFINITY;
    double total4;
    total4 = 0;
    const int64_t room = (length + 63) / 64 * 64;
    char *const rows = partial + (a[0] > 1 ? omp_get_thread_num() : 0) * 4 * room;
    float *restrict const row3 = (float *)(rows + 0 * room);
    {
      float lane1[64], none1 = -INFINITY;
      MG_HIDE(none1);
      for (int64_t k = 0; k < 64; k++) lane1[k] = none1;
      int64_t filled = 0;
      int64_t begin = from, col = from - first_row * inner;
      mg_start(a, 2, loops - 1, first_row, at, step, index);
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
              lane1[k] = ((v0 > lane1[k]) | (v0 != v0) ? v0 : lane1[k]);
            }
          }
          #pragma GCC ivdep
          for (int64_t k = 0; k < last - j; k++) {
            const float v0 = p0[j + k];
            lane1[k] = ((v0 > lane1[k]) | (v0 != v0) ? v0 : lane1[k]);
          }
          filled += (last - first + 63) / 64;
          if (filled >= 64) {
            filled = 0;
            const float all1 = mg_fold_max_float32_float32(lane1);
            total1 = ((all1 > total1) | (all1 != all1) ? all1 : total1);
            for (int64_t k = 0; k < 64; k++) lane1[k] = none1;
          }
        }
        begin += n;
        if ((col += n) == inner) {
          col = 0;
          mg_next(a, 2, loops - 1, at, step, index);
        }
      }
      const float all1 = mg_fold_max_float32_float32(lane1);
      total1 = ((all1 > total1) | (all1 != all1) ? all1 : total1);
    }
    const float v1 = total1;
    {
      float lane4[64], none4 = 0;
      MG_HIDE(none4);
      for (int64_t k = 0; k < 64; k++) lane4[k] = none4;
      int64_t filled = 0;
      int64_t begin = from, col = from - first_row * inner;
      mg_start(a, 2, loops - 1, first_row, at, step, index);
      while (begin < to) {
        int64_t n = inner - col < to - begin ? inner - col : to - begin;
        const float *p0 = (const float *)(base0 + at[0] + col * (int64_t)sizeof(float));
        for (int64_t first = 0; first < n; first += 4096) {
          const int64_t last = n - first > 4096 ? first + 4096 : n;
          int64_t j = first;
          for (; j + 64 <= last; j += 64) {
            if (fetch) mg_fetch(next0 + at[0] + (col + j) * 4, (64) * 4);
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
          filled += (last - first + 63) / 64;
          if (filled >= 64) {
            filled = 0;
            const double all4 = mg_fold_sum_float32_float32(lane4);
            total4 = all4 + total4;
            for (int64_t k = 0; k < 64; k++) lane4[k] = none4;
          }
        }
        begin += n;
        if ((col += n) == inner) {
          col = 0;
          mg_next(a, 2, loops - 1, at, step, index);
        }
      }
      const double all4 = mg_fold_sum_float32_float32(lane4);
      total4 = all4 + total4;
    }
    const float v4 = total4;
    {
      const int64_t stream = a[4] && base1 != base0;
      int64_t begin = from, col = from - first_row * inner;
      mg_start(a, 2, loops - 1, first_row, at, step, index);
      while (begin < to) {
        int64_t n = inner - col < to - begin ? inner - col : to - begin;
        float *p1 = (float *)(base1 + at[1] + col * (int64_t)sizeof(float));
        for (int64_t first = 0, last; first < n; first = last) {
          float piece1[256];
          float *out1 = stream ? piece1 - first : p1;
          last = stream && n - first > 256 ? first + 256 - MG_PAST(p1 + first) : n;
          #pragma GCC ivdep
          for (int64_t j = first; j < last; j++) {
            const float v3 = row3[begin + j];
            const float v5 = v3 / v4;
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
