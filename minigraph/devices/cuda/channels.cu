/* Copy images or weights to another number of channels: see channels.py.

   A thread copies WIDE neighbouring channels of one pixel, which are a vector where the channels are
   the last axis.  Threads along x are the pixels of an image, so accesses to planes are coalesced and
   pixels need no division; PAIR of them have vectors that fill a sector.  Threads along y are the other
   channels of all images.  Indices are unsigned, so that a row above the first is far below the last.
   An index is summed before it is added to an address: for a sum of three terms NVRTC emits stores of
   single elements.

   T       unsigned integer of the size of an element
   I       type of an index
   WIDENS  whether channels are added, rather than removed
   LAST    whether the channels are the last axis of the array with more channels
   BLOCK_ROWS, BLOCK_COLUMNS  rows and columns of a block of pixels that become channels */
struct NAME_args { int64_t w[18]; };
extern "C" __global__ void NAME(const __grid_constant__ NAME_args a) {
  T *const wide_images = (T *)mg_global(a.w[WIDENS]);
  T *const narrow_images = (T *)mg_global(a.w[1 - WIDENS]);
  const I pixels = a.w[2], lines = a.w[3], image_lines = a.w[4], columns = a.w[5];
  const I wide_channel_step = a.w[6], wide_pixel_step = a.w[7];
  const I channels = a.w[8], height = a.w[9], width = a.w[10];
  const I channel_step = a.w[11], row_step = a.w[12], column_step = a.w[13];
  const I thread_pixel = blockIdx.x * (I)blockDim.x + threadIdx.x;
  if (thread_pixel >= pixels) return;
  const I pixel = thread_pixel / PAIR, i = pixel / columns, j = pixel - i * columns;
  const I top = i * (I)a.w[14] - (I)a.w[16];
  const I left = j * (I)a.w[15] - (I)a.w[17];
  const I begin = blockIdx.y * (I)blockDim.y + threadIdx.y, step = gridDim.y * blockDim.y;
  for (I line = begin; line < lines; line += step) {
    const I image = image_lines == 1 ? line : line / image_lines;
    const I vector = (line - image * image_lines) * PAIR + thread_pixel % PAIR;
    const I first = vector * WIDE;
    const I offset = image * image_lines * WIDE * pixels + first * wide_channel_step +
                     pixel * wide_pixel_step;
    T *const wide = wide_images + offset;
    T *const narrow = narrow_images + image * channels * height * width;
    T x[WIDE];
#if !WIDENS && LAST
    mg_load<WIDE>(x, (const char *)wide);
#elif !WIDENS
    #pragma unroll
    for (int u = 0; u < WIDE; u++) x[u] = wide[u * wide_channel_step];
#endif
    #pragma unroll
    for (int u = 0; u < WIDE; u++) {
      const I k = first + u, channel = k / BLOCK_COLUMNS / BLOCK_ROWS;
      const I row = top + k / BLOCK_COLUMNS % BLOCK_ROWS, column = left + k % BLOCK_COLUMNS;
      const bool inside = channel < channels && row < height && column < width;
      const I narrow_offset = channel * channel_step + row * row_step + column * column_step;
#if WIDENS
      x[u] = inside ? narrow[narrow_offset] : 0;
#else
      if (inside) narrow[narrow_offset] = x[u];
#endif
    }
#if WIDENS && LAST
    mg_store<WIDE>((char *)wide, x);
#elif WIDENS
    #pragma unroll
    for (int u = 0; u < WIDE; u++) wide[u * wide_channel_step] = x[u];
#endif
  }
}
