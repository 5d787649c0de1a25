/* Local response normalisation; one thread for each element.

   Sizes: count, channels, pixels, channels of a window; alpha / size, beta and k as the bits of
   doubles.

   T, W, S, LOAD, STORE  of an element
   POW                   pow or powf, for W */
KERNEL {
  EACH_ELEMENT {
    const I pixels = a.w[SIZES + 2];
    const int64_t channels = a.w[SIZES + 1], window = a.w[SIZES + 3];
    const W scale = __longlong_as_double(a.w[SIZES + 4]);
    const W beta = __longlong_as_double(a.w[SIZES + 5]);
    const W bias = __longlong_as_double(a.w[SIZES + 6]);
    const int64_t c = e / pixels % (I)channels;
    const int64_t low = max(-c, -(window / 2));
    const int64_t high = min(channels - 1 - c, window - 1 - window / 2);
    const T *p = (const T *)mg_global(a.w[0]) + e;
    S sum = 0;
    for (int64_t k = low; k <= high; k++) {
      const W v = LOAD(p[k * (int64_t)pixels]);
      sum += v * v;
    }
    const W v = LOAD(p[0]);
    ((T *)mg_global(a.w[1]))[e] = STORE(v * POW((W)sum * scale + bias, -beta));
  }
}
