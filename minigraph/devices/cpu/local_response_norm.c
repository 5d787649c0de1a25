/* Local response normalisation of images [n, c, h, w].

   The argument block: threads, images, channels, pixels of a channel, channels of a window; alpha /
   size, beta and k as the bits of doubles; then the operands.

   T          type of an element
   W          type of the sum of squares
   POW(x, y)  pow or powf
   BLOCK      pixels whose sums are in the first-level cache */
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], images = a[1], channels = a[2], pixels = a[3], size = a[4];
  double parameters[3];
  memcpy(parameters, a + 5, sizeof parameters);
  const T scale = parameters[0], beta = parameters[1], bias = parameters[2];
  const T *x = (const T *)(slots[a[8]] + a[9]);
  T *y = (T *)(slots[a[10]] + a[11]);
  (void)threads;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t u = 0; u < images * channels; u++) {
    const int64_t c = u % channels, low = c < size / 2 ? -c : -(size / 2);
    int64_t high = size - 1 - size / 2;
    if (high > channels - 1 - c) high = channels - 1 - c;
    const T *p = x + u * pixels;
    T *q = y + u * pixels;
    for (int64_t first = 0; first < pixels; first += BLOCK) {
      const int64_t n = pixels - first < BLOCK ? pixels - first : BLOCK;
      W sums[BLOCK] = {0};
      for (int64_t k = low; k <= high; k++) {
        const T *row = p + k * pixels + first;
        for (int64_t j = 0; j < n; j++) sums[j] += row[j] * row[j];
      }
      for (int64_t j = 0; j < n; j++)
        q[first + j] = p[first + j] * POW((T)sums[j] * scale + bias, -beta);
    }
  }
  return 0;
}
