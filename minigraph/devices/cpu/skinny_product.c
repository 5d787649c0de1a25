/* A product of few rows, x w^T plus a bias: each result is the dot product of a row of x and one
   of w.  Both lie row by row.  G rows of w are read at a time, side by side, for all rows of x,
   whose elements are brought together before: L of each row beside those of the next.

   The argument block: threads, rows of w, their length, whether there is a bias; slot and offset of
   x, w, the bias, the result, and of the scratch memory for x.

   L     floats of a vector
   M     rows of x
   G     rows of w that are read at a time
   STRETCH floats of a row that are added up one after the other
   AHEAD how many floats before it is used a row is fetched */
typedef float vec __attribute__((vector_size(L * 4), aligned(4), may_alias));
/* The elements of a row from `at` on, and zeros behind its end. */
static inline vec NAME_load(const float *row, int64_t at, int64_t length) {
  if (at + L <= length) return *(const vec *)(row + at);
  vec v = {0};
  for (int64_t l = 0; l < length - at; l++) v[l] = row[at + l];
  return v;
}
static inline float NAME_total(vec v) {
  float part[L];
  memcpy(part, &v, sizeof part);
  for (int64_t half = L / 2; half; half /= 2)
    for (int64_t l = 0; l < half; l++) part[l] += part[half + l];
  return part[0];
}
DOTS
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], n = a[1], length = a[2], vectors = (length + L - 1) / L;
  const float *x = (const float *)(slots[a[4]] + a[5]), *w = (const float *)(slots[a[6]] + a[7]);
  const float *bias = a[3] ? (const float *)(slots[a[8]] + a[9]) : 0;
  float *y = (float *)(slots[a[10]] + a[11]);
  vec *beside = (vec *)(slots[a[12]] + a[13]);
  #pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const int64_t me = omp_get_thread_num(), team = omp_get_num_threads();
    for (int64_t t = vectors * me / team; t < vectors * (me + 1) / team; t++)
      for (int64_t i = 0; i < M; i++) beside[t * M + i] = NAME_load(x + i * length, t * L, length);
    #pragma omp barrier
    const int64_t end = n * (me + 1) / team;
    for (int64_t j = n * me / team; j < end; j += G) {
      const int64_t count = end - j < G ? end - j : G;
      vec sums[M * G];
      NAME_dots(w + j * length, count, length, beside, sums);
      for (int64_t i = 0; i < M; i++)
        for (int64_t g = 0; g < count; g++)
          y[i * n + j + g] = NAME_total(sums[i * G + g]) + (bias ? bias[j + g] : 0);
    }
  }
  return 0;
}
