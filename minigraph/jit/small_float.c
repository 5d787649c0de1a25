/* Conversions between floats of 16 bits, as their bits, and wider ones.  Each function stands behind
   those that it calls, and has an empty line before it. */

static inline uint32_t mg_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float mg_number(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* To the nearest, the even one of two: a carry goes into the exponent, and on to infinity.  In
   x + 0.5 the last bit is the last one of a denormal. */
static inline uint16_t mg_float16_of_float(float x) {
  const uint32_t sign = mg_bits(x) >> 16 & 0x8000u, m = mg_bits(x) & 0x7fffffffu;
  const uint32_t normal = (m - 0x38000000u + 0xfffu + (m >> 13 & 1)) >> 13;
  const uint32_t small = mg_bits(mg_number(m) + 0.5f) - 0x3f000000u;
  const uint32_t large = m > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return sign | (m >= 0x47800000u ? large : m < 0x38800000u ? small : normal);
}

/* Rounding twice goes wrong where the first one hides on which side of the middle the number is;
   a last bit that is 1 for all inexact ones shows it (Boldo and Melquiond, 2008). */
static inline uint16_t mg_float16_of_double(double x) {
  const float near = (float)x;
  const uint32_t odd = (mg_bits(near) - (fabs((double)near) > fabs(x))) | 1;
  return mg_float16_of_float((double)near == x ? near : mg_number(odd));
}

/* A denormal m is read as 2**-14 + m, the next larger exponent's, less 2**-14. */
static inline float mg_float_of_float16(uint16_t x) {
  const uint32_t sign = (uint32_t)(x & 0x8000u) << 16, m = (uint32_t)(x & 0x7fffu) << 13;
  const uint32_t normal = m + (m >= 0x0f800000u ? 0x70000000u : 0x38000000u);
  const uint32_t small = mg_bits(mg_number(m + 0x38800000u) - 0x1p-14f);
  return mg_number(sign | (m < 0x00800000u ? small : normal));
}

static inline uint32_t mg_bfloat16_of_float(float x) {
  const uint32_t b = mg_bits(x), high = b >> 16;
  return x != x ? high | 0x40u : (b + 0x7fffu + (high & 1)) >> 16;
}

/* Of a number that is a bfloat16: it keeps NaN's bits and denormals. */
static inline uint32_t mg_bfloat16_as_it_is(float x) { return mg_bits(x) >> 16; }

static inline float mg_float_of_bfloat16(uint32_t x) { return mg_number(x << 16); }

/* A float32 rounded to 16 bits, as a float32. */
static inline float mg_round_float16(float x) { return mg_float_of_float16(mg_float16_of_float(x)); }

static inline float mg_round_bfloat16(float x) { return mg_float_of_bfloat16(mg_bfloat16_of_float(x)); }
