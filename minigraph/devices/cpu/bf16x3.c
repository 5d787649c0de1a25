/* Split floats in two numbers of bfloat16 each, high + low, and write rows of three numbers: x [outer,
   inner] becomes [outer, 3, inner], which is high, high, low (FIRST) or high, low, high.

   The argument block: threads, outer, inner, then the operands.

   Low is 0 where high is infinite or NaN, and so is high where it stands a second time: such numbers
   meet each number of the other operand once.  What would round to infinity is cut off instead. */
#define PIECE 4096
int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], outer = a[1], inner = a[2], pieces = (inner + PIECE - 1) / PIECE;
  const float *x = (const float *)(slots[a[3]] + a[4]);
  uint16_t *y = (uint16_t *)(slots[a[5]] + a[6]);
  #pragma omp parallel for collapse(2) num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t row = 0; row < outer; row++)
    for (int64_t p = 0; p < pieces; p++) {
      const int64_t begin = p * PIECE, left = inner - begin, n = left < PIECE ? left : PIECE;
      const float *const from = x + row * inner + begin;
      uint16_t *const once = y + 3 * row * inner + begin;
      uint16_t *const again = once + (FIRST ? 1 : 2) * inner;
      uint16_t *const below = once + (FIRST ? 2 : 1) * inner;
      for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = mg_bits(from[i]);
        const int finite = (bits & 0x7f800000u) != 0x7f800000u;
        const uint32_t near = mg_bfloat16_of_float(from[i]);
        const uint32_t high = finite && (near & 0x7f80u) == 0x7f80u ? bits >> 16 : near;
        const uint32_t low = mg_bfloat16_of_float(from[i] - mg_float_of_bfloat16(high));
        once[i] = high;
        again[i] = finite ? high : 0;
        below[i] = finite ? low : 0;
      }
    }
  return 0;
}
#undef PIECE
