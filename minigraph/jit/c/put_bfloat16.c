/* Puts a piece of floats, of PIECE at most, into an array of bfloat16.  The instruction makes 0 of
   denormals, as floats are computed with while programs run. */
#if defined(__AVX512BF16__)
static inline void mg_narrow_bfloat16(uint16_t *to, const float *from, int64_t n) {
  float __attribute__((vector_size(64))) x = {0};
  short __attribute__((vector_size(32))) y;
  memcpy(&x, from, n * sizeof *from);
  __asm__("vcvtneps2bf16 %1, %0" : "=v"(y) : "v"(x));
  memcpy(to, &y, n * sizeof *to);
}
#endif
MG_SHARED void mg_put_bfloat16(uint16_t *to, const float *from, int64_t n, int64_t stream) {
  uint16_t piece[PIECE], *out = stream ? piece : to;
#if defined(__AVX512BF16__)
  int64_t j = 0;
  for (; j + 16 <= n; j += 16) mg_narrow_bfloat16(out + j, from + j, 16);
  if (j < n) mg_narrow_bfloat16(out + j, from + j, n - j);
#else
  for (int64_t j = 0; j < n; j++) out[j] = mg_bfloat16_of_float(from[j]);
#endif
  if (stream) mg_stream(to, piece, n * sizeof *to);
}
