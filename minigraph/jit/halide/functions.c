/* Float functions in place of Halide's own, which do not handle NaN and infinity or are not vectorised.
   They compute in double and round once, at the end, with Chebyshev polynomials.  The translation to
   Halide supports no `if`: both operands of a conditional expression are computed. */

/* Return log(x), x = 2**n * m > 0, as n * log(2) + 2 * atanh(s), s = (m - 1) / (m + 1), where m is
   between sqrt(1/2) and sqrt(2). */
static inline double mg_log_positive(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint64_t above = bits - 0x3fe6a09e667f3bcdu;
  const int32_t n = ((int32_t)(above >> 52) << 20) >> 20;
  bits = (above & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu;
  double m;
  memcpy(&m, &bits, sizeof m);
  const double s = (m - 1) / (m + 1), z = s * s;
  double p = 0x1.91a39ed1f295dp-4;
  p = p * z + 0x1.c61fd2b23b9a9p-4;
  p = p * z + 0x1.24943b5e8eca9p-3;
  p = p * z + 0x1.999996245fa43p-3;
  p = p * z + 0x1.55555556745f0p-2;
  return n * 0x1.62e42fefa39efp-1 + 2 * (s + s * z * p);
}
/* Return a logarithm of x: y, which is correct for finite x > 0, or the value for the other x. */
static inline float mg_log_special(float x, double y) {
  const float regular = x < INFINITY ? (float)y : x;
  return x < 0 ? NAN : x == 0 ? -INFINITY : regular;
}
static inline float mg_logf(float x) { return mg_log_special(x, mg_log_positive(x)); }
static inline float mg_log2f(float x) {
  return mg_log_special(x, mg_log_positive(x) * 0x1.71547652b82fep+0);
}
static inline float mg_log10f(float x) {
  return mg_log_special(x, mg_log_positive(x) * 0x1.bcb7b1526e50ep-2);
}
/* log(1 + x) = log(u) + error / u, where u is 1 + x rounded, and error what rounding lost. */
static inline float mg_log1pf(float x) {
  const double u = 1 + (double)x, error = x - (u - 1);
  const float y = mg_log_special(u, mg_log_positive(u) + error / u);
  return x == 0 ? x : y;
}
/* Return e**x - one, where one is 0 or 1, for x from -700 to 700: 2**n * (e**r - 1) + (2**n - one). */
static inline double mg_exp_minus(double x, double one) {
  const double n = rint(x * 0x1.71547652b82fep+0);
  const double r = x - n * 0x1.62e42fefa39efp-1;
  double p = 0x1.a137426f16cfcp-16;
  p = p * r + 0x1.a17ea987d8dd3p-13;
  p = p * r + 0x1.6c166b8f94446p-10;
  p = p * r + 0x1.1110a5b46901ap-7;
  p = p * r + 0x1.55555565dead9p-5;
  p = p * r + 0x1.5555557eb07e9p-3;
  p = p * r + 0x1.fffffffffe028p-2;
  p = p * r + 1;
  const uint64_t bits = (uint64_t)((int32_t)n + 1023) << 52;
  double power;
  memcpy(&power, &bits, sizeof power);
  return power * (p * r) + (power - one);
}
static inline float mg_expm1f(float x) {
  const double clamped = x > 100 ? 100 : x < -100 ? -100 : x;
  const float y = mg_exp_minus(clamped, 1);
  return x == 0 || x != x ? x : y;
}
/* Return the rounding error of square = x * x.  hiddenf prevents reuse of the rounded product. */
static inline float MG_SQUARE_ERROR(float x, float square) { return MG_FMA(hiddenf(x), x, -square); }
static inline float mg_hypotf(float x, float y) {
  const double a = x, b = y;
  const float length = sqrt(a * a + b * b);
  return fabsf(x) == INFINITY || fabsf(y) == INFINITY ? INFINITY : length;
}
/* x**y, whose absolute value is |x|**y. */
static inline float mg_powf(float x, float y) {
  const float a = fabsf(x);
  const double log = a == 0 ? -INFINITY : a < INFINITY ? mg_log_positive(a) : (double)a;
  const double exponent = y * log;
  const double clamped = exponent > 200 ? 200 : exponent < -200 ? -200 : exponent;
  const float magnitude = mg_exp_minus(clamped, 0);
  const int odd = floorf(y) == y && floorf(y * 0.5f) != y * 0.5f;
  const float negative = floorf(y) == y              ? (odd ? -magnitude : magnitude)
                         : a == 0 || a == INFINITY ? magnitude
                                                   : NAN;
  const float z = copysignf(1, x) < 0 ? negative : magnitude;
  const float with_nan = exponent != exponent || x != x ? x * y : z;
  const int one = y == 0 || x == 1 || (x == -1 && fabsf(y) == INFINITY);
  return one ? 1 : with_nan;
}
