/* Convert n floats, at most BUFFER, to bfloat16 and store them, optionally with streaming stores.
   vcvtneps2bf16 flushes denormals to zero, as all kernels do. */
#if defined(__AVX512BF16__)
static inline void mg_convert_to_bfloat16(uint16_t *to, const float *from, int64_t n) {
  float __attribute__((vector_size(64))) x = {0};
  short __attribute__((vector_size(32))) y;
  memcpy(&x, from, n * sizeof *from);
  __asm__("vcvtneps2bf16 %1, %0" : "=v"(y) : "v"(x));
  memcpy(to, &y, n * sizeof *to);
}
#endif
MG_NOINLINE void mg_store_bfloat16(uint16_t *to, const float *from, int64_t n, int64_t stream) {
  uint16_t buffer[BUFFER], *out = stream ? buffer : to;
#if defined(__AVX512BF16__)
  int64_t j = 0;
  for (; j + 16 <= n; j += 16) mg_convert_to_bfloat16(out + j, from + j, 16);
  if (j < n) mg_convert_to_bfloat16(out + j, from + j, n - j);
#else
  for (int64_t j = 0; j < n; j++) out[j] = mg_bfloat16_of_float(from[j]);
#endif
  if (stream) mg_stream_copy(to, buffer, n * sizeof *to);
}
