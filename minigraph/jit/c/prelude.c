/* What stands before all kernels of a translation unit; MG_MAX_RANK is the most axes of one. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <omp.h>

/* A function that is compiled once for all kernels of a unit: a copy in each place that calls it
   would cost more of the compiler's time than the loops of a kernel. */
#define MG_SHARED static __attribute__((noinline, unused))
/* A function of elements: a loop that calls one, as compilers would have it that call a long one
   twice, is not computed in vectors. */
#define MG_INLINE static inline __attribute__((always_inline))
/* Compilers do not know what x is.  Arrays of a number that they know are set in parts of another
   length than they are read in, which waits until all are in the cache. */
#define MG_HIDE(x) __asm__("" : "+r"(x))
/* Its loops end with vectors so short that the longest ones are not worth their latency. */
#if defined(__AVX512F__) && !defined(__clang__)
#define MG_FOLD MG_SHARED __attribute__((target("prefer-vector-width=256")))
#else
#define MG_FOLD MG_SHARED
#endif
/* Over how many of `lanes` elements a loop runs that computes the first `rest` of them: over all, with
   a mask, where the processor has masks for elements of so many bytes. */
#if defined(__AVX512BW__)
#define MG_MASKED(bytes, lanes, rest) (lanes)
#elif defined(__AVX2__)
#define MG_MASKED(bytes, lanes, rest) ((bytes) < 4 ? (rest) : (lanes))
#else
#define MG_MASKED(bytes, lanes, rest) (rest)
#endif
/* Its loops are too short for vectors. */
#if defined(__clang__)
#define MG_SHORT MG_SHARED
#else
#define MG_SHORT MG_SHARED __attribute__((optimize("no-tree-vectorize")))
#endif
/* Argument blocks are described in jit/kernel.py.  `mg_place` finds where each operand of a unit
   begins; `mg_start` sets the odometer `index` over the outer `axes` of the loops, and each
   operand's offset `at`, to a row; `mg_next` moves them on to the next one, by `step` but where an
   axis ends. */
MG_SHORT void mg_find(const int64_t *a, int operands, int64_t unit, int64_t *place) {
  const int64_t units = a[1], pitch = units + a[2] + 2, *extent = a + 7;
  const int64_t *operand = extent + units + a[2];
  for (int k = 0; k < operands; k++) place[k] = operand[k * pitch + 1];
  for (int64_t d = units - 1; d >= 0; d--) {
    const int64_t i = d ? unit % extent[d] : unit;
    if (d) unit /= extent[d];
    for (int k = 0; k < operands; k++) place[k] += i * operand[k * pitch + 2 + d];
  }
}
static inline void mg_place(const int64_t *a, int operands, int64_t unit, int64_t *place) {
  const int64_t pitch = a[2] + 3, *operand = a + 8 + a[2];
  if (a[1] == 1)
    for (int k = 0; k < operands; k++)
      place[k] = operand[k * pitch + 1] + unit * operand[k * pitch + 2];
  else mg_find(a, operands, unit, place);
}
MG_SHORT void mg_begin(const int64_t *a, int operands, int64_t axes, int64_t row, int64_t *at,
                       int64_t *step, int64_t *index) {
  const int64_t units = a[1], pitch = units + a[2] + 2, *extent = a + 7 + units;
  const int64_t *stride = extent + a[2] + 2 + units;
  for (int k = 0; k < operands; k++) step[k] = stride[k * pitch + axes - 1];
  for (int64_t d = axes - 1; d >= 0; d--) {
    index[d] = d ? row % extent[d] : row;
    if (d) row /= extent[d];
    for (int k = 0; k < operands; k++) at[k] += index[d] * stride[k * pitch + d];
  }
}
static inline void mg_start(const int64_t *a, int operands, int64_t axes, int64_t row, int64_t *at,
                            int64_t *step, int64_t *index) {
  for (int k = 0; k < operands; k++) at[k] = 0;
  if (axes > 0) mg_begin(a, operands, axes, row, at, step, index);
}
MG_SHORT void mg_wrap(const int64_t *a, int operands, int64_t axes, int64_t *at, int64_t *index) {
  const int64_t units = a[1], pitch = units + a[2] + 2, *extent = a + 7 + units;
  const int64_t *stride = extent + a[2] + 2 + units;
  for (int64_t d = axes - 1; index[d] == extent[d]; d--) {
    index[d] = 0;
    for (int k = 0; k < operands; k++) at[k] -= extent[d] * stride[k * pitch + d];
    if (d == 0) return;
    index[d - 1]++;
    for (int k = 0; k < operands; k++) at[k] += stride[k * pitch + d - 1];
  }
}
static inline void mg_next(const int64_t *a, int operands, int64_t axes, int64_t *at,
                           const int64_t *step, int64_t *index) {
  if (axes == 0) return;
  for (int k = 0; k < operands; k++) at[k] += step[k];
  if (++index[axes - 1] == a[7 + a[1] + axes - 1]) mg_wrap(a, operands, axes, at, index);
}
/* Whether an axis that is at x, `pace` numbers from element to element, is within its bounds; n
   elements are cut to those of which the same is true. */
static inline int mg_within(int64_t x, int64_t pace, const int64_t *bound, int64_t *n) {
  const int64_t end = x < bound[0] ? bound[0] : bound[1];
  if (x < end && x + *n * pace > end) *n = (end - x + pace - 1) / pace;
  return x >= bound[0] && x < bound[1];
}
/* What stands for elements outside of an array. */
#define MG_ZEROS 512
static const int64_t mg_zeros[MG_ZEROS] __attribute__((unused));
/* Functions in which products may be fused with sums, as they are in any library. */
#if defined(__clang__)
#define MG_FAST static
#else
#define MG_FAST static __attribute__((optimize("fp-contract=fast")))
#endif
/* The bytes of a register of vectors, as far as gcc has to be told to keep vectors there. */
#if defined(__clang__)
#define MG_REGISTER 0
#elif defined(__AVX512F__)
#define MG_REGISTER 64
#elif defined(__AVX__)
#define MG_REGISTER 32
#else
#define MG_REGISTER 0
#endif
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define MG_FMA fmaf
#define MG_LOST(x, square) fmaf(x, x, -(square))
#else
#define MG_FMA(x, y, z) ((x) * (y) + (z))
#define MG_LOST(x, square) (float)((double)(x) * (x) - (square))
#endif
/* e to the power x is 2**n times e to the power r, |r| <= ln(2) / 2 (W. J. Cody and W. Waite, Software
   Manual for the Elementary Functions, 1980).  `mg_reduced` returns r, and n where a float has its
   exponent; `mg_series` is e**r = 1 + r + r**2 * series. */
MG_INLINE float mg_reduced(float x, uint32_t *n) {
  const float to_integer = 0x1.8p23f; /* adding it rounds, and leaves n in the last bits */
  const float shifted = MG_FMA(x, 0x1.715476p0f, to_integer), whole = shifted - to_integer;
  memcpy(n, &shifted, sizeof *n);
  *n <<= 23;
  return MG_FMA(whole, -0x1.7f7d1cp-20f, MG_FMA(whole, -0x1.62e4p-1f, x));
}
MG_INLINE float mg_series(float r) {
  float y = 0x1.6a25e2p-10f;
  y = MG_FMA(y, r, 0x1.123a22p-7f);
  y = MG_FMA(y, r, 0x1.5558fp-5f);
  y = MG_FMA(y, r, 0x1.555492p-3f);
  return MG_FMA(y, r, 0x1.fffffcp-2f);
}
/* e to the power x.  For every float it is within 0.9 units in the last place, without fused
   multiply-adds within 1.2; 0 where that is denormal.  Compilers vectorise it where it is called,
   whatever the C library has. */
MG_INLINE float mg_expf(float x) {
  uint32_t bits, n;
  const float r = mg_reduced(x, &n);
  float y = MG_FMA(MG_FMA(mg_series(r), r, 1.0f), r, 1.0f);
  memcpy(&bits, &y, sizeof bits);
  bits += n;
  memcpy(&y, &bits, sizeof y);
  y = x < -0x1.5d589ep6f ? 0 : y;
  return x <= 0x1.62e42ep6f ? y : x * INFINITY; /* NaN, too */
}
#define expf mg_expf
/* The hyperbolic tangent is t / (t + 2), t = e**2a - 1, which keeps its digits where a is small; within
   2.7 units in the last place, and 1 from 9.02 on. */
MG_INLINE float mg_tanhf(float x) {
  const float a = fabsf(x);
  uint32_t n;
  const float r = mg_reduced(2 * (a > 9.02f ? 9.02f : a), &n);
  float power; /* 2**n */
  n += 0x3f800000;
  memcpy(&power, &n, sizeof power);
  const float t = MG_FMA(power, MG_FMA(mg_series(r), r * r, r), power - 1);
  return copysignf(t / (t + 2), x);
}
#define tanhf mg_tanhf
/* 1 less the error function of a >= 0 is e to the power -a**2 times a polynomial of t = 1 / (1 + a / 2),
   and t times that again.  MG_LOST is what a**2 lost to rounding, and `lost` what t did, times how fast
   the result grows with it.  Within 3.2 units in the last place, and 0 where it is denormal. */
MG_INLINE float mg_erfcf(float x) {
  const float a = fabsf(x), square = a * a;
  uint32_t n;
  const float r = mg_reduced(-square, &n) - MG_LOST(a, square);
  n += 0x3f800000;
  float power; /* 2**n */
  memcpy(&power, &n, sizeof power);
  const float d = MG_FMA(a, 0.5f, 1.0f), t = 1 / d;
  const float lost = MG_FMA(MG_FMA(a, -0.5f, d - 1), t, MG_FMA(-d, t, 1.0f));
  float y = 0x1.152decp-5f;
  y = MG_FMA(y, t, -0x1.6fa26cp-3f);
  y = MG_FMA(y, t, 0x1.67b1b4p-2f);
  y = MG_FMA(y, t, -0x1.f3f01ap-3f);
  y = MG_FMA(y, t, -0x1.0ce3bp-4f);
  y = MG_FMA(y, t, 0x1.03211ap-4f);
  y = MG_FMA(y, t, 0x1.5ff452p-5f);
  y = MG_FMA(y, t, 0x1.82fe58p-3f);
  y = MG_FMA(y, t, 0x1.f4e5d6p-3f);
  y = MG_FMA(y, t, 0x1.2116b8p-2f);
  y = t * MG_FMA(y, t, 0x1.20db1ep-2f);
  y = power * MG_FMA(y, MG_FMA(mg_series(r), r * r, MG_FMA(lost, 1.3f, r)), y);
  y = a > 0x1.263a1p3f ? 0 : y;
  return x < 0 ? 2 - y : y;
}
#define erfcf mg_erfcf
#define MG_LONG 2048 /* bytes from which on the C library copies as fast */
/* Copy at least `size` bytes in vectors of so many, of which the last two overlap. */
MG_INLINE void mg_copy_by(char *to, const char *from, int64_t bytes, int64_t size) {
  char last[64];
  memcpy(last, from + bytes - size, size);
  for (int64_t j = 0; j + size < bytes; j += size) memcpy(to + j, from + j, size);
  memcpy(to + bytes - size, last, size);
}
/* Copy a row, which may be short. */
MG_INLINE void mg_row(char *to, const char *from, int64_t bytes) {
  if (bytes >= MG_LONG) memcpy(to, from, bytes);
  else if (bytes >= 64) mg_copy_by(to, from, bytes, 64);
  else if (bytes >= 32) mg_copy_by(to, from, bytes, 32);
  else if (bytes >= 16) mg_copy_by(to, from, bytes, 16);
  else if (bytes >= 8) mg_copy_by(to, from, bytes, 8);
  else if (bytes >= 4) mg_copy_by(to, from, bytes, 4);
  else
    for (int64_t j = 0; j < bytes; j++) to[j] = from[j];
}
/* Add x to a total, of which `rest` has what the additions rounded off (O. Moeller, 1965). */
MG_INLINE void mg_add(double *total, double *rest, double x) {
  const double y = *total, sum = x + y, added = sum - y;
  *rest += (y - (sum - added)) + (x - added);
  *total = sum;
}
/* The sum of both; infinities leave NaN in the rest. */
MG_INLINE double mg_sum(double total, double rest) {
  return total + (rest - rest == 0 ? rest : 0);
}
/* Copy past the caches.  The builtins are what immintrin.h, slow to read, has other names for. */
#if defined(__AVX512F__)
#define MG_LINE 64 /* a whole line of the caches: no store waits for the other half */
#else
#define MG_LINE 32
#endif
/* Elements that lie between where a line begins and what `p` points to. */
#define MG_PAST(p) ((int64_t)((uintptr_t)(p) % MG_LINE / sizeof *(p)))
#if defined(__AVX__)
typedef long long mg_aligned __attribute__((vector_size(MG_LINE), may_alias));
typedef long long mg_unaligned __attribute__((vector_size(MG_LINE), may_alias, aligned(1)));
#if defined(__clang__)
#define MG_STREAM(to, value) __builtin_nontemporal_store(value, to)
#elif MG_LINE == 64
#define MG_STREAM(to, value) __builtin_ia32_movntdq512(to, value)
#else
#define MG_STREAM(to, value) __builtin_ia32_movntdq256(to, value)
#endif
MG_SHARED void mg_stream(void *to, const void *from, int64_t bytes) {
  char *q = to;
  const char *p = from;
  const int64_t head = (MG_LINE - MG_PAST(q)) % MG_LINE;
  if (bytes < head + MG_LINE) {
    memcpy(q, p, bytes);
    return;
  }
  memcpy(q, p, head);
  int64_t j = head;
  for (; j + MG_LINE <= bytes; j += MG_LINE)
    MG_STREAM((mg_aligned *)(q + j), (mg_aligned) * (const mg_unaligned *)(p + j));
  memcpy(q + j, p + j, bytes - j);
}
static inline void mg_fence(void) { __builtin_ia32_sfence(); }
#else
static inline void mg_stream(void *to, const void *from, int64_t bytes) { memcpy(to, from, bytes); }
static inline void mg_fence(void) {}
#endif
/* Have memory that will be read soon brought into the second cache; any address will do. */
static inline void mg_fetch(const char *from, int64_t bytes) {
  for (int64_t j = 0; j < bytes; j += 64) __builtin_prefetch(from + j, 0, 2);
}
/* Have the threads of each parallel region flush denormals to zero, and get back what they had: they
   run other libraries' regions too.  The linker puts these functions in the place of GNU OpenMP's.  A
   thread that starts here has the settings of the one that starts it. */
#if defined(__x86_64__)
#define MG_FLUSH 0x8040u
#if !defined(__clang__)
typedef struct {
  void (*run)(void *);
  void *data;
} mg_region;
MG_SHARED void mg_flushing(void *p) {
  const unsigned found = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(found | MG_FLUSH);
  ((const mg_region *)p)->run(((const mg_region *)p)->data);
  __builtin_ia32_ldmxcsr(found);
}
#define MG_REGION(name, parameters, ...) \
  void __real_##name parameters; \
  __attribute__((visibility("hidden"))) void __wrap_##name parameters { \
    mg_region region = {run, data}; \
    const unsigned mine = __builtin_ia32_stmxcsr(); \
    __builtin_ia32_ldmxcsr(mine & ~MG_FLUSH); \
    __real_##name(mg_flushing, &region, __VA_ARGS__); \
    __builtin_ia32_ldmxcsr(mine); \
  }
MG_REGION(GOMP_parallel, (void (*run)(void *), void *data, unsigned n, unsigned flags), n, flags)
MG_REGION(GOMP_parallel_loop_nonmonotonic_dynamic, (void (*run)(void *), void *data, unsigned n, \
          long begin, long end, long step, long chunk, unsigned flags), n, begin, end, step, chunk, \
          flags)
#endif
#endif
/* What a kernel returns that has to be called again: signals may be waiting for their handlers. */
#define MG_PAUSED (1 << 20)
/* Share the space among threads, in parts that begin at a multiple of 64 elements. */
typedef void (*mg_part)(const int64_t *a, char **slots, int64_t begin, int64_t end);
static inline void mg_share(mg_part part, const int64_t *a, char **slots) {
  int64_t total = 1;
  for (int64_t d = 0; d < a[1]; d++) total *= a[2 + d];
  if (a[0] <= 1) {
    part(a, slots, 0, total);
    return;
  }
  #pragma omp parallel num_threads(a[0])
  {
    const int64_t count = omp_get_num_threads(), me = omp_get_thread_num();
    const int64_t share = (total / count + 63) / 64 * 64;
    const int64_t begin = share * me, end = me == count - 1 ? total : begin + share;
    if (begin < (end < total ? end : total)) part(a, slots, begin, end < total ? end : total);
  }
}
