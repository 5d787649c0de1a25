/* Copies of images and weights to other channels: see channels.py.

   A thread has WIDE neighbouring channels of one pixel: a vector where the channels are last.
   Threads along x are pixels, so those of planes are neighbours too, and the many pixels of an
   image cost no division; PAIR of them have vectors that fill a sector.  Threads along y are the
   other channels of all images.  Numbers are unsigned: a row above the first is one far below the
   last.  An index is a sum before it is added to an address: of a sum of three, NVRTC makes stores
   of single elements.

   T             unsigned integers of the size of an element
   I             type of an index
   WIDENS        whether channels are added, rather than taken away
   LAST          whether the channels are last where there are more
   HIGH, ACROSS  rows and columns of a block */
struct NAME_args { int64_t w[18]; };
extern "C" __global__ void NAME(const __grid_constant__ NAME_args a) {
  T *const vectors = (T *)mg_global(a.w[WIDENS]);
  T *const others = (T *)mg_global(a.w[1 - WIDENS]);
  const I places = a.w[2], rows = a.w[3], across = a.w[4], columns = a.w[5];
  const I to_channel = a.w[6], to_pixel = a.w[7];
  const I channels = a.w[8], height = a.w[9], width = a.w[10];
  const I channel_step = a.w[11], row_step = a.w[12], column_step = a.w[13];
  const I place = blockIdx.x * (I)blockDim.x + threadIdx.x;
  if (place >= places) return;
  const I pixel = place / PAIR, i = pixel / columns, j = pixel - i * columns;
  const I top = i * (I)a.w[14] - (I)a.w[16];
  const I left = j * (I)a.w[15] - (I)a.w[17];
  const I begin = blockIdx.y * (I)blockDim.y + threadIdx.y, step = gridDim.y * blockDim.y;
  for (I line = begin; line < rows; line += step) {
    const I image = across == 1 ? line : line / across;
    const I vector = (line - image * across) * PAIR + place % PAIR;
    const I first = vector * WIDE;
    const I offset = image * across * WIDE * places + first * to_channel + pixel * to_pixel;
    T *const all = vectors + offset;
    T *const one = others + image * channels * height * width;
    T x[WIDE];
#if !WIDENS && LAST
    mg_load<WIDE>(x, (const char *)all);
#elif !WIDENS
    #pragma unroll
    for (int u = 0; u < WIDE; u++) x[u] = all[u * to_channel];
#endif
    #pragma unroll
    for (int u = 0; u < WIDE; u++) {
      const I k = first + u, channel = k / ACROSS / HIGH;
      const I row = top + k / ACROSS % HIGH, column = left + k % ACROSS;
      const bool inside = channel < channels && row < height && column < width;
      const I at = channel * channel_step + row * row_step + column * column_step;
#if WIDENS
      x[u] = inside ? one[at] : 0;
#else
      if (inside) one[at] = x[u];
#endif
    }
#if WIDENS && LAST
    mg_store<WIDE>((char *)all, x);
#elif WIDENS
    #pragma unroll
    for (int u = 0; u < WIDE; u++) all[u * to_channel] = x[u];
#endif
  }
}
