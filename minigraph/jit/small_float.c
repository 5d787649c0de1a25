/* Conversions between 16-bit floats, held as their bits, and wider floats.  Each function follows those
   that it calls, after an empty line. */

static inline uint32_t mg_bits_of_float(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float mg_float_of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* Round to nearest, ties to even.  A carry runs into the exponent, and on to infinity.  The last bit of
   x + 0.5 is the last bit of a denormal. */
static inline uint16_t mg_float16_of_float(float x) {
  const uint32_t sign = mg_bits_of_float(x) >> 16 & 0x8000u, m = mg_bits_of_float(x) & 0x7fffffffu;
  const uint32_t normal = (m - 0x38000000u + 0xfffu + (m >> 13 & 1)) >> 13;
  const uint32_t small = mg_bits_of_float(mg_float_of_bits(m) + 0.5f) - 0x3f000000u;
  const uint32_t large = m > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return sign | (m >= 0x47800000u ? large : m < 0x38800000u ? small : normal);
}

/* Round to odd, then to nearest: rounding twice to nearest may be wrong (Boldo and Melquiond, 2008). */
static inline uint16_t mg_float16_of_double(double x) {
  const float nearest = (float)x;
  const uint32_t odd = (mg_bits_of_float(nearest) - (fabs((double)nearest) > fabs(x))) | 1;
  return mg_float16_of_float((double)nearest == x ? nearest : mg_float_of_bits(odd));
}

/* A denormal m is computed as (2**-14 + m) - 2**-14, whose terms are normal. */
static inline float mg_float_of_float16(uint16_t x) {
  const uint32_t sign = (uint32_t)(x & 0x8000u) << 16, m = (uint32_t)(x & 0x7fffu) << 13;
  const uint32_t normal = m + (m >= 0x0f800000u ? 0x70000000u : 0x38000000u);
  const uint32_t small = mg_bits_of_float(mg_float_of_bits(m + 0x38800000u) - 0x1p-14f);
  return mg_float_of_bits(sign | (m < 0x00800000u ? small : normal));
}

static inline uint32_t mg_bfloat16_of_float(float x) {
  const uint32_t b = mg_bits_of_float(x), high = b >> 16;
  return x != x ? high | 0x40u : (b + 0x7fffu + (high & 1)) >> 16;
}

/* Convert a float that is representable in bfloat16; it keeps denormals and the bits of NaN. */
static inline uint32_t mg_bfloat16_of_exact_float(float x) { return mg_bits_of_float(x) >> 16; }

static inline float mg_float_of_bfloat16(uint32_t x) { return mg_float_of_bits(x << 16); }

/* Round a float32 to the precision of 16 bits. */
static inline float mg_round_float16(float x) { return mg_float_of_float16(mg_float16_of_float(x)); }

static inline float mg_round_bfloat16(float x) { return mg_float_of_bfloat16(mg_bfloat16_of_float(x)); }
