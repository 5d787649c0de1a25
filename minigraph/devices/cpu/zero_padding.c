/* Put right what oneDNN's products of matrices make of padding: they multiply its zeros, by infinity
   or NaN too.  A result that is NaN is computed again without the padding, in double; as soon as its
   sum is NaN it stays so.

   The argument block: images, groups, channels of a group before and behind; the sides of x, of the
   window and of y; stride, padding, dilation; strides of x and of y in floats, each of an image, a
   channel, a row and a pixel; whether there is a bias; then places of x, w, y and the bias.

   WEIGHTS  whether w is the result, rather than y */
int NAME(const int64_t *a, char **slots) {
  const int64_t n = a[0], groups = a[1], in = a[2], out = a[3];
  const int64_t *side = a + 4, *window = a + 6, *result = a + 8;
  const int64_t *stride = a + 10, *padding = a + 12, *dilation = a + 14, *xs = a + 16, *ys = a + 20;
  const float *x = (const float *)(slots[a[25]] + a[26]);
  float *w = (float *)(slots[a[27]] + a[28]), *y = (float *)(slots[a[29]] + a[30]);
  const float *bias = a[24] ? (const float *)(slots[a[31]] + a[32]) : 0;
  const int64_t taps = window[0] * window[1];
  #pragma omp parallel for
  for (int64_t k = 0; k < groups * out; k++) {
    const float *xk = x + k / out * in * xs[1];
    float *wk = w + k * in * taps, *yk = y + k * ys[1];
#if WEIGHTS
    for (int64_t c = 0; c < in; c++)
      for (int64_t t = 0; t < taps; t++) {
        float *const to = wk + c * taps + t;
        double sum = 0;
        if (*to == *to) continue;
        for (int64_t u = 0; u < n * result[0] && sum == sum; u++) {
          const int64_t i = u % result[0];
          const int64_t row = i * stride[0] - padding[0] + t / window[1] * dilation[0];
          if (row < 0 || row >= side[0]) continue;
          const float *px = xk + u / result[0] * xs[0] + c * xs[1] + row * xs[2];
          const float *py = yk + u / result[0] * ys[0] + i * ys[2];
          for (int64_t j = 0; j < result[1]; j++) {
            const int64_t column = j * stride[1] - padding[1] + t % window[1] * dilation[1];
            if (column >= 0 && column < side[1]) sum += (double)px[column * xs[3]] * py[j * ys[3]];
          }
        }
        *to = sum;
      }
#else
    for (int64_t u = 0; u < n * result[0]; u++) {
      const int64_t i = u % result[0], top = i * stride[0] - padding[0];
      const int whole = top >= 0 && top + (window[0] - 1) * dilation[0] < side[0];
      for (int64_t j = 0; j < result[1]; j++) {
        float *const to = yk + u / result[0] * ys[0] + i * ys[2] + j * ys[3];
        const int64_t left = j * stride[1] - padding[1];
        if (*to == *to) continue;
        if (whole && left >= 0 && left + (window[1] - 1) * dilation[1] < side[1]) continue;
        double sum = bias ? bias[k] : 0;
        for (int64_t m = 0; m < in * taps && sum == sum; m++) {
          const int64_t row = top + m % taps / window[1] * dilation[0];
          const int64_t column = left + m % window[1] * dilation[1];
          if (row < 0 || row >= side[0] || column < 0 || column >= side[1]) continue;
          const float *px = xk + u / result[0] * xs[0] + m / taps * xs[1];
          sum += (double)px[row * xs[2] + column * xs[3]] * wk[m];
        }
        *to = sum;
      }
    }
#endif
  }
  return 0;
}
