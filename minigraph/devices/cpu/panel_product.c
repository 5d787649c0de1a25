/* Products of matrices, x w plus a bias, where no library has any.  A panel of w is a few vectors of
   its columns, beside which zeros stand behind the last one.  A chunk of a panel is copied to the
   stack, where it stays in the first cache while it is multiplied with R rows of x after the other.

   The argument block: threads, batches, rows, columns, length of the sums, whether there is a bias,
   parts of the rows; steps in floats of x, and of w: from batch to batch, row to row, column to
   column; slot and offset of x, w, the bias, and the result.

   L   floats of a vector
   NV  vectors of a panel
   R   rows that are multiplied at once
   C   rows of a chunk */
typedef float vec __attribute__((vector_size(L * 4), aligned(4), may_alias));
PRODUCTS
static void NAME_chunk(
    const float *w, int64_t row, int64_t column, int64_t count, int64_t columns, float *panel) {
  if (columns < NV * L) memset(panel, 0, count * NV * L * sizeof *panel);
  if (column == 1) {
    for (int64_t k = 0; k < count; k++)
      for (int64_t j = 0; j < columns; j++) panel[k * NV * L + j] = w[k * row + j];
  } else {
    for (int64_t j = 0; j < columns; j++)
      for (int64_t k = 0; k < count; k++) panel[k * NV * L + j] = w[k * row + j * column];
  }
}
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], batches = a[1], m = a[2], n = a[3], length = a[4], parts = a[6];
  const int64_t *sx = a + 7, *sw = a + 10;
  const float *xs = (const float *)(slots[a[13]] + a[14]), *ws = (const float *)(slots[a[15]] + a[16]);
  const float *bias = a[5] ? (const float *)(slots[a[17]] + a[18]) : 0;
  float *ys = (float *)(slots[a[19]] + a[20]);
  const int64_t panels = (n + NV * L - 1) / (NV * L), groups = (m + R - 1) / R;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
  for (int64_t task = 0; task < batches * panels * parts; task++) {
    const int64_t batch = task / (panels * parts), first = task / parts % panels * NV * L;
    const int64_t part = task % parts, columns = n - first < NV * L ? n - first : NV * L;
    const int64_t top = groups * part / parts * R, end = groups * (part + 1) / parts * R;
    const int64_t bottom = end < m ? end : m;
    const float *w = ws + batch * sw[0] + first * sw[2], *x = xs + batch * sx[0];
    float *y = ys + batch * m * n + first, panel[C * NV * L] __attribute__((aligned(64)));
    for (int64_t i = top; i < bottom; i++)
      for (int64_t j = 0; j < columns; j++) y[i * n + j] = bias ? bias[first + j] : 0;
    for (int64_t k = 0; k < length; k += C) {
      const int64_t count = length - k < C ? length - k : C;
      NAME_chunk(w + k * sw[1], sw[1], sw[2], count, columns, panel);
      int64_t i = top;
      for (; i + R <= bottom; i += R)
        NAME_products_R(x + i * sx[1] + k * sx[2], sx[1], sx[2], count, panel, y + i * n, n, columns);
      for (; i < bottom; i++)
        NAME_products_1(x + i * sx[1] + k * sx[2], sx[1], sx[2], count, panel, y + i * n, n, columns);
    }
  }
  return 0;
}
