/* The prelude of a translation unit of kernels.  MG_MAX_RANK is the largest number of axes of a kernel. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <omp.h>

/* A function that all kernels of a translation unit share.  Inlining it into each would take more
   compile time than the loops of a kernel. */
#define MG_NOINLINE static __attribute__((noinline, unused))
/* A function of one element.  Compilers do not inline a long function that is called twice, and do not
   vectorise a loop with a call. */
#define MG_INLINE static inline __attribute__((always_inline))
/* Hide the value of x from the optimiser.  It would fill an array with a known constant in vectors of
   another width than it loads them in, so that stores are not forwarded to loads. */
#define MG_OPAQUE(x) __asm__("" : "+r"(x))
/* A function that folds lanes to one value.  It ends with short vectors, for which the latency of the
   widest vectors does not pay. */
#if defined(__AVX512F__) && !defined(__clang__)
#define MG_FOLD MG_NOINLINE __attribute__((target("prefer-vector-width=256")))
#else
#define MG_FOLD MG_NOINLINE
#endif
/* The iterations of a remainder loop for `rest` elements: a whole vector of `lanes` elements, with a
   mask, if the processor has masked loads and stores of elements of `bytes` bytes; else `rest`. */
#if defined(__AVX512BW__)
#define MG_REMAINDER_LENGTH(bytes, lanes, rest) (lanes)
#elif defined(__AVX2__)
#define MG_REMAINDER_LENGTH(bytes, lanes, rest) ((bytes) < 4 ? (rest) : (lanes))
#else
#define MG_REMAINDER_LENGTH(bytes, lanes, rest) (rest)
#endif
/* A function whose loops are too short for vectors. */
#if defined(__clang__)
#define MG_SCALAR MG_NOINLINE
#else
#define MG_SCALAR MG_NOINLINE __attribute__((optimize("no-tree-vectorize")))
#endif
/* Argument blocks are described in jit/kernel.py.  An operand has a record of `record` words: slot,
   offset, and strides along the unit axes and the loop axes.

   mg_unit_offsets      set unit_offset[k] to the byte offset of operand k in a unit
   mg_odometer_start    set the odometer `index` over the first `axes` loop axes to a row, and
                        row_offset[k] to the byte offset of operand k in that row, relative to the unit
   mg_odometer_advance  advance the odometer and the offsets to the next row; row_stride[k] is the
                        stride of operand k along the last of these axes */
MG_SCALAR void mg_unravel_unit(const int64_t *a, int operands, int64_t unit, int64_t *unit_offset) {
  const int64_t unit_axes = a[1], record = unit_axes + a[2] + 2, *extent = a + 7;
  const int64_t *operand = extent + unit_axes + a[2];
  for (int k = 0; k < operands; k++) unit_offset[k] = operand[k * record + 1];
  for (int64_t d = unit_axes - 1; d >= 0; d--) {
    const int64_t i = d ? unit % extent[d] : unit;
    if (d) unit /= extent[d];
    for (int k = 0; k < operands; k++) unit_offset[k] += i * operand[k * record + 2 + d];
  }
}
static inline void mg_unit_offsets(const int64_t *a, int operands, int64_t unit,
                                   int64_t *unit_offset) {
  const int64_t record = a[2] + 3, *operand = a + 8 + a[2];
  if (a[1] == 1)
    for (int k = 0; k < operands; k++)
      unit_offset[k] = operand[k * record + 1] + unit * operand[k * record + 2];
  else mg_unravel_unit(a, operands, unit, unit_offset);
}
MG_SCALAR void mg_unravel_row(const int64_t *a, int operands, int64_t axes, int64_t row,
                              int64_t *row_offset, int64_t *row_stride, int64_t *index) {
  const int64_t unit_axes = a[1], record = unit_axes + a[2] + 2, *extent = a + 7 + unit_axes;
  const int64_t *stride = extent + a[2] + 2 + unit_axes;
  for (int k = 0; k < operands; k++) row_stride[k] = stride[k * record + axes - 1];
  for (int64_t d = axes - 1; d >= 0; d--) {
    index[d] = d ? row % extent[d] : row;
    if (d) row /= extent[d];
    for (int k = 0; k < operands; k++) row_offset[k] += index[d] * stride[k * record + d];
  }
}
static inline void mg_odometer_start(const int64_t *a, int operands, int64_t axes, int64_t row,
                                     int64_t *row_offset, int64_t *row_stride, int64_t *index) {
  for (int k = 0; k < operands; k++) row_offset[k] = 0;
  if (axes > 0) mg_unravel_row(a, operands, axes, row, row_offset, row_stride, index);
}
MG_SCALAR void mg_odometer_carry(const int64_t *a, int operands, int64_t axes, int64_t *row_offset,
                                 int64_t *index) {
  const int64_t unit_axes = a[1], record = unit_axes + a[2] + 2, *extent = a + 7 + unit_axes;
  const int64_t *stride = extent + a[2] + 2 + unit_axes;
  for (int64_t d = axes - 1; index[d] == extent[d]; d--) {
    index[d] = 0;
    for (int k = 0; k < operands; k++) row_offset[k] -= extent[d] * stride[k * record + d];
    if (d == 0) return;
    index[d - 1]++;
    for (int k = 0; k < operands; k++) row_offset[k] += stride[k * record + d - 1];
  }
}
static inline void mg_odometer_advance(const int64_t *a, int operands, int64_t axes,
                                       int64_t *row_offset, const int64_t *row_stride,
                                       int64_t *index) {
  if (axes == 0) return;
  for (int k = 0; k < operands; k++) row_offset[k] += row_stride[k];
  if (++index[axes - 1] == a[7 + a[1] + axes - 1])
    mg_odometer_carry(a, operands, axes, row_offset, index);
}
/* Return whether position x of a window counter is inside bound[0] <= x < bound[1].  Shorten *n, a
   number of elements that are `stride` apart, so that the answer is the same for all of them. */
static inline int mg_in_window(int64_t x, int64_t stride, const int64_t *bound, int64_t *n) {
  const int64_t end = x < bound[0] ? bound[0] : bound[1];
  if (x < end && x + *n * stride > end) *n = (end - x + stride - 1) / stride;
  return x >= bound[0] && x < bound[1];
}
/* Zeros, which are read in place of the elements outside of a window. */
#define MG_ZEROS 512
static const int64_t mg_zeros[MG_ZEROS] __attribute__((unused));
/* A function in which the compiler may contract products and sums to fused multiply-adds. */
#if defined(__clang__)
#define MG_CONTRACT static
#else
#define MG_CONTRACT static __attribute__((optimize("fp-contract=fast")))
#endif
/* The bytes of a vector register, where gcc has to be told to keep a vector in one; else 0. */
#if defined(__clang__)
#define MG_VECTOR_BYTES 0
#elif defined(__AVX512F__)
#define MG_VECTOR_BYTES 64
#elif defined(__AVX__)
#define MG_VECTOR_BYTES 32
#else
#define MG_VECTOR_BYTES 0
#endif
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define MG_FMA(x, y, z) _Generic((x), float: fmaf, double: fma)(x, y, z)
#define MG_SQUARE_ERROR(x, square) fmaf(x, x, -(square))
#else
#define MG_FMA(x, y, z) ((x) * (y) + (z))
#define MG_SQUARE_ERROR(x, square) (float)((double)(x) * (x) - (square))
#endif
/* Range reduction: e**x = 2**n * e**r, |r| <= ln(2) / 2 (W. J. Cody and W. Waite, Software Manual for
   the Elementary Functions, 1980).  mg_exp_range_reduce returns r, and n shifted to the exponent field
   of a float; e**r = 1 + r + r**2 * mg_exp_polynomial(r). */
MG_INLINE float mg_exp_range_reduce(float x, uint32_t *n) {
  const float to_integer = 0x1.8p23f; /* adding it rounds to an integer n, in the low bits */
  const float shifted = MG_FMA(x, 0x1.715476p0f, to_integer), rounded = shifted - to_integer;
  memcpy(n, &shifted, sizeof *n);
  *n <<= 23;
  return MG_FMA(rounded, -0x1.7f7d1cp-20f, MG_FMA(rounded, -0x1.62e4p-1f, x));
}
MG_INLINE float mg_exp_polynomial(float r) {
  float y = 0x1.6a25e2p-10f;
  y = MG_FMA(y, r, 0x1.123a22p-7f);
  y = MG_FMA(y, r, 0x1.5558fp-5f);
  y = MG_FMA(y, r, 0x1.555492p-3f);
  return MG_FMA(y, r, 0x1.fffffcp-2f);
}
/* Return 2**n, of the n that mg_exp_range_reduce returns. */
MG_INLINE float mg_power_of_two(uint32_t n) {
  float power;
  n += 0x3f800000;
  memcpy(&power, &n, sizeof power);
  return power;
}
/* Return e**x within 0.9 ulp for all floats (1.2 ulp without fused multiply-adds); 0 where that is
   denormal. Unlike the function of a C library, it is inlined and vectorised. */
MG_INLINE float mg_expf(float x) {
  uint32_t bits, n;
  const float r = mg_exp_range_reduce(x, &n);
  float y = MG_FMA(MG_FMA(mg_exp_polynomial(r), r, 1.0f), r, 1.0f);
  memcpy(&bits, &y, sizeof bits);
  bits += n;
  memcpy(&y, &bits, sizeof y);
  y = x < -0x1.5d589ep6f ? 0 : y;
  return x <= 0x1.62e42ep6f ? y : x * INFINITY; /* also NaN */
}
#define expf mg_expf
/* Return tanh(x) = t / (t + 2), t = e**(2x) - 1, within 2.7 ulp; 1 from 9.02 on.  t loses no digits
   where x is small. */
MG_INLINE float mg_tanhf(float x) {
  const float a = fabsf(x);
  uint32_t n;
  const float r = mg_exp_range_reduce(2 * (a > 9.02f ? 9.02f : a), &n);
  const float power = mg_power_of_two(n);
  const float t = MG_FMA(power, MG_FMA(mg_exp_polynomial(r), r * r, r), power - 1);
  return copysignf(t / (t + 2), x);
}
#define tanhf mg_tanhf
/* Return 1 - erf(x) within 4.8 ulp (5.5 without fused multiply-adds); 0 where that is denormal.  For
   a = |x| it is e**(-a**2) * p(a) / q(a).  Even and odd powers of the polynomials are separate sums, so
   that fewer roundings follow each other; MG_SQUARE_ERROR corrects the exponent. */
MG_INLINE float mg_erfcf(float x) {
  const float a = fabsf(x), square = a * a;
  uint32_t n;
  const float r = mg_exp_range_reduce(-square, &n) - MG_SQUARE_ERROR(a, square);
  const float power = mg_power_of_two(n);
  float p = MG_FMA(MG_FMA(0x1.051d56p-5f, square, 0x1.719b64p-1f), square, 1.0f);
  p = MG_FMA(MG_FMA(0x1.cc22d8p-3f, square, 0x1.3a9acp0f), a, p);
  float q = MG_FMA(MG_FMA(0x1.97d16p-2f, square, 0x1.30df3ep1f), square, 1.0f);
  q = MG_FMA(MG_FMA(MG_FMA(0x1.cece6p-5f, square, 0x1.4ea8f2p0f), square, 0x1.2dbc1ep1f), a, q);
  float y = p / q;
  y = power * MG_FMA(y, MG_FMA(mg_exp_polynomial(r), r * r, r), y);
  y = a > 0x1.263a1p3f ? 0 : y;
  return x < 0 ? 2 - y : y;
}
#define erfcf mg_erfcf
/* Return erf(x) within 1.1 ulp (1.2 without fused multiply-adds): a polynomial for |x| < 0.875, else
   1 - e**-(a + a * z), a = |x|, with a polynomial z. */
MG_INLINE float mg_erff(float x) {
  const float a = fabsf(x), square = x * x, clamped = a > 3.93f ? 3.93f : a;
  float y = -0x1.3c566ap-11f;
  y = MG_FMA(y, square, 0x1.47c52ap-8f);
  y = MG_FMA(y, square, -0x1.b6a216p-6f);
  y = MG_FMA(y, square, 0x1.ce1beep-4f);
  y = MG_FMA(y, square, -0x1.8126eep-2f);
  y = MG_FMA(y, square, 0x1.06eba6p-3f);
  float z = 0x1.3a427ep-17f;
  z = MG_FMA(z, clamped, -0x1.3f1fa4p-12f);
  z = MG_FMA(z, clamped, 0x1.d3b416p-9f);
  z = MG_FMA(z, clamped, -0x1.82c7f8p-6f);
  z = MG_FMA(z, clamped, 0x1.b26b9ap-4f);
  z = MG_FMA(z, clamped, 0x1.454064p-1f);
  z = MG_FMA(z, clamped, 0x1.076b72p-3f);
  uint32_t n;
  const float r = mg_exp_range_reduce(-MG_FMA(z, clamped, clamped), &n);
  const float power = mg_power_of_two(n);
  const float large = 1 - MG_FMA(power, MG_FMA(mg_exp_polynomial(r), r * r, r), power);
  return copysignf(a < 0.875f ? MG_FMA(y, a, a) : large, x);
}
#define erff mg_erff
/* The same in double: e**x within 0.9 ulp (1.2 without fused multiply-adds), 0 where that is denormal,
   and tanh(x) within 2.5 ulp, 1 from 19.1 on. */
MG_INLINE double mg_exp_range_reduce_double(double x, uint64_t *n) {
  const double to_integer = 0x1.8p52;
  const double shifted = MG_FMA(x, 0x1.71547652b82fep0, to_integer), rounded = shifted - to_integer;
  memcpy(n, &shifted, sizeof *n);
  *n <<= 52;
  return MG_FMA(rounded, -0x1.a39ef35793c76p-33, MG_FMA(rounded, -0x1.62e42feep-1, x));
}
MG_INLINE double mg_exp_polynomial_double(double r) {
  double y = 0x1.af38a9b0ec855p-26;
  y = MG_FMA(y, r, 0x1.289185613a3d6p-22);
  y = MG_FMA(y, r, 0x1.71de0dae63bb3p-19);
  y = MG_FMA(y, r, 0x1.a019b90d2ae7ap-16);
  y = MG_FMA(y, r, 0x1.a01a01a7c41d5p-13);
  y = MG_FMA(y, r, 0x1.6c16c1788bd90p-10);
  y = MG_FMA(y, r, 0x1.11111111109b3p-7);
  y = MG_FMA(y, r, 0x1.5555555553d63p-5);
  y = MG_FMA(y, r, 0x1.5555555555556p-3);
  return MG_FMA(y, r, 0x1.0000000000001p-1);
}
MG_INLINE double mg_exp(double x) {
  uint64_t bits, n;
  const double r = mg_exp_range_reduce_double(x, &n);
  double y = MG_FMA(MG_FMA(mg_exp_polynomial_double(r), r, 1.0), r, 1.0);
  memcpy(&bits, &y, sizeof bits);
  bits += n;
  memcpy(&y, &bits, sizeof y);
  y = x < -0x1.6232bdd7abcd2p9 ? 0 : y;
  return x <= 0x1.62e42fefa39efp9 ? y : x * INFINITY; /* also NaN */
}
#define exp mg_exp
MG_INLINE double mg_tanh(double x) {
  const double a = fabs(x);
  uint64_t n;
  const double r = mg_exp_range_reduce_double(2 * (a > 19.1 ? 19.1 : a), &n);
  double power;
  n += 0x3ff0000000000000;
  memcpy(&power, &n, sizeof power);
  const double t = MG_FMA(power, MG_FMA(mg_exp_polynomial_double(r), r * r, r), power - 1);
  return copysign(t / (t + 2), x);
}
#define tanh mg_tanh
#define MG_LONG_ROW 2048 /* bytes from which on memcpy is as fast */
/* Copy at least `size` bytes in vectors of `size` bytes; the last two vectors overlap. */
MG_INLINE void mg_copy_vectors(char *to, const char *from, int64_t bytes, int64_t size) {
  char last[64];
  memcpy(last, from + bytes - size, size);
  for (int64_t j = 0; j + size < bytes; j += size) memcpy(to + j, from + j, size);
  memcpy(to + bytes - size, last, size);
}
/* Copy a row; for short ones it is faster than memcpy. */
MG_INLINE void mg_copy_row(char *to, const char *from, int64_t bytes) {
  if (bytes >= MG_LONG_ROW) memcpy(to, from, bytes);
  else if (bytes >= 64) mg_copy_vectors(to, from, bytes, 64);
  else if (bytes >= 32) mg_copy_vectors(to, from, bytes, 32);
  else if (bytes >= 16) mg_copy_vectors(to, from, bytes, 16);
  else if (bytes >= 8) mg_copy_vectors(to, from, bytes, 8);
  else if (bytes >= 4) mg_copy_vectors(to, from, bytes, 4);
  else
    for (int64_t j = 0; j < bytes; j++) to[j] = from[j];
}
/* Add x to a total, and the rounding error to *error (compensated summation, O. Moeller, 1965). */
MG_INLINE void mg_compensated_add(double *total, double *error, double x) {
  const double y = *total, sum = x + y, added = sum - y;
  *error += (y - (sum - added)) + (x - added);
  *total = sum;
}
/* Return the corrected total; after an infinity the error is NaN, and ignored. */
MG_INLINE double mg_compensated_sum(double total, double error) {
  return total + (error - error == 0 ? error : 0);
}
/* Streaming stores, which bypass the caches.  immintrin.h, with the usual names, takes long to parse. */
#if defined(__AVX512F__)
#define MG_STREAM_BYTES 64 /* a whole cache line: no store waits for its other half */
#else
#define MG_STREAM_BYTES 32
#endif
/* The distance in elements from the last multiple of MG_STREAM_BYTES to p. */
#define MG_MISALIGNMENT(p) ((int64_t)((uintptr_t)(p) % MG_STREAM_BYTES / sizeof *(p)))
#if defined(__AVX__)
typedef long long mg_aligned __attribute__((vector_size(MG_STREAM_BYTES), may_alias));
typedef long long mg_unaligned __attribute__((vector_size(MG_STREAM_BYTES), may_alias, aligned(1)));
#if defined(__clang__)
#define MG_STREAM_STORE(to, value) __builtin_nontemporal_store(value, to)
#elif MG_STREAM_BYTES == 64
#define MG_STREAM_STORE(to, value) __builtin_ia32_movntdq512(to, value)
#else
#define MG_STREAM_STORE(to, value) __builtin_ia32_movntdq256(to, value)
#endif
MG_NOINLINE void mg_stream_copy(void *to, const void *from, int64_t bytes) {
  char *q = to;
  const char *p = from;
  const int64_t head = (MG_STREAM_BYTES - MG_MISALIGNMENT(q)) % MG_STREAM_BYTES;
  if (bytes < head + MG_STREAM_BYTES) {
    memcpy(q, p, bytes);
    return;
  }
  memcpy(q, p, head);
  int64_t j = head;
  for (; j + MG_STREAM_BYTES <= bytes; j += MG_STREAM_BYTES)
    MG_STREAM_STORE((mg_aligned *)(q + j), (mg_aligned) * (const mg_unaligned *)(p + j));
  memcpy(q + j, p + j, bytes - j);
}
static inline void mg_fence(void) { __builtin_ia32_sfence(); }
#else
static inline void mg_stream_copy(void *to, const void *from, int64_t bytes) {
  memcpy(to, from, bytes);
}
static inline void mg_fence(void) {}
#endif
/* Prefetch memory into the second-level cache; the address need not be valid. */
static inline void mg_prefetch(const char *from, int64_t bytes) {
  for (int64_t j = 0; j < bytes; j += 64) __builtin_prefetch(from + j, 0, 2);
}
/* Flush denormals to zero in all threads of a parallel region, and restore their MXCSR after it,
   because the threads run regions of other libraries too.  The linker (--wrap) replaces GNU OpenMP's
   functions by these.  A new thread inherits the MXCSR of the thread that starts it. */
#if defined(__x86_64__)
#define MG_FLUSH_DENORMALS 0x8040u
#if !defined(__clang__)
typedef struct {
  void (*run)(void *);
  void *data;
} mg_parallel_region;
MG_NOINLINE void mg_run_flushing_denormals(void *p) {
  const unsigned mxcsr = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(mxcsr | MG_FLUSH_DENORMALS);
  ((const mg_parallel_region *)p)->run(((const mg_parallel_region *)p)->data);
  __builtin_ia32_ldmxcsr(mxcsr);
}
#define MG_WRAP_PARALLEL_REGION(name, parameters, ...) \
  void __real_##name parameters; \
  __attribute__((visibility("hidden"))) void __wrap_##name parameters { \
    mg_parallel_region region = {run, data}; \
    const unsigned mxcsr = __builtin_ia32_stmxcsr(); \
    __builtin_ia32_ldmxcsr(mxcsr & ~MG_FLUSH_DENORMALS); \
    __real_##name(mg_run_flushing_denormals, &region, __VA_ARGS__); \
    __builtin_ia32_ldmxcsr(mxcsr); \
  }
MG_WRAP_PARALLEL_REGION(GOMP_parallel, (void (*run)(void *), void *data, unsigned n, unsigned flags), \
                        n, flags)
MG_WRAP_PARALLEL_REGION(GOMP_parallel_loop_nonmonotonic_dynamic, \
                        (void (*run)(void *), void *data, unsigned n, long begin, long end, \
                         long step, long chunk, unsigned flags), \
                        n, begin, end, step, chunk, flags)
#endif
#endif
/* The result of a kernel that paused for Python's signal handlers and has to be called again. */
#define MG_PAUSED (1 << 20)
