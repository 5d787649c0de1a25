#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define INT8_MIN (-128)
#define INT16_MIN (-32768)
#define INT32_MIN (-2147483647 - 1)
#define INT64_MIN (-9223372036854775807LL - 1)
#define INT8_MAX 127
#define INT16_MAX 32767
#define INT32_MAX 2147483647
#define INT64_MAX 9223372036854775807LL
#define UINT8_MAX 255
#define UINT16_MAX 65535
#define UINT32_MAX 4294967295U
#define UINT64_MAX 18446744073709551615ULL
#define MG_CONVERT(TO, FROM, NAME, HOW, OUT, IN)                                                   \
  static inline TO NAME(FROM x) {                                                                  \
    TO y;                                                                                          \
    asm(HOW " %0, %1;" : OUT(y) : IN(x));                                                          \
    return y;                                                                                      \
  }
/* Conversions of 16-bit floats, held as their bits, and of pairs of them in memory order. */
MG_CONVERT(float, uint16_t, mg_float_of_float16, "cvt.f32.f16", "=f", "h")
MG_CONVERT(uint16_t, float, mg_float16_of_float, "cvt.rn.f16.f32", "=h", "f")
MG_CONVERT(uint16_t, double, mg_float16_of_double, "cvt.rn.f16.f64", "=h", "d")
MG_CONVERT(uint16_t, float, mg_bfloat16_of_float, "cvt.rn.bf16.f32", "=h", "f")
static inline float mg_float_of_bfloat16(uint16_t x) { return __uint_as_float((uint32_t)x << 16); }
#define MG_PACK(NAME, HOW)                                                                         \
  static inline uint32_t NAME(float low, float high) {                                             \
    uint32_t pair;                                                                                 \
    asm(HOW " %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));                                    \
    return pair;                                                                                   \
  }
MG_PACK(mg_pack_float16, "cvt.rn.f16x2.f32")
MG_PACK(mg_pack_bfloat16, "cvt.rn.bf16x2.f32")
/* C++ only has overloads for two floats and two doubles. */
static inline double copysign(int x, double y) { return copysign((double)x, y); }
#endif

/* CUDA's logarithms test the upper half of a double as a float.  With denormals flushed to zero,
   negative doubles of small magnitude pass for 0, and their logarithm would be -inf. */
#define MG_LOG(NAME)                                                                               \
  static inline double mg_##NAME(double x) { return x < 0 ? NAN : NAME(x); }
MG_LOG(log)
MG_LOG(log2)
MG_LOG(log10)
/* CUDA's hypot may overflow by a rounding error where the result is the largest double. */
static inline double mg_hypot(double x, double y) {
  const double length = hypot(x, y), longer = fmax(fabs(x), fabs(y));
  const double ratio = fmin(fabs(x), fabs(y)) / longer;
  return length == INFINITY && longer < INFINITY ? longer * sqrt(1 + ratio * ratio) : length;
}
#undef log
#undef log2
#undef log10
#undef hypot
#define log(x) mg_log(x)
#define log2(x) mg_log2(x)
#define log10(x) mg_log10(x)
#define hypot(x, y) mg_hypot(x, y)

/* Round a float to the precision of 16 bits. */
static inline float mg_round_float16(float x) {
  return mg_float_of_float16(mg_float16_of_float(x));
}
static inline float mg_round_bfloat16(float x) {
  return __uint_as_float(mg_pack_bfloat16(0, x));
}
/* Return a pointer to global memory; generic addressing would cost a test at each access. */
static __forceinline__ char *mg_global(long long address) {
  char *p = (char *)address;
  __builtin_assume(__isGlobal(p));
  return p;
}
/* Zeros, which are read in place of the elements outside of a window. */
#define MG_ZEROS 1
static const int64_t mg_zeros[MG_ZEROS] = {0};
/* Return whether position x along an axis is inside of a window. */
static __forceinline__ bool mg_in_window(int64_t x, const long long *bound) {
  return x >= bound[0] && x < bound[1];
}
/* Return the index along the innermost axis of a flat index *rest, and divide *rest by the extent of
   the axis. A 64-bit division takes several times longer than a 32-bit one. */
static __forceinline__ int mg_unravel(int *rest, int extent) {
  const uint32_t x = *rest, whole = x / (uint32_t)extent;
  *rest = whole;
  return x - whole * extent;
}
static __forceinline__ int64_t mg_unravel(int64_t *rest, int64_t extent) {
  const uint64_t x = *rest, n = extent;
  uint64_t whole;
  if ((x | n) >> 32)
    whole = x / n;
  else
    whole = (uint32_t)x / (uint32_t)n;
  *rest = whole;
  return x - whole * n;
}
/* Return which of the kernels of a launch a block belongs to; `first` has the first block of each. */
static __forceinline__ int mg_kernel_of_block(const long long *first, int count, long long block) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first[middle] <= block) low = middle; else high = middle;
  }
  return low;
}
/* Vector loads and stores of N elements; `in` predicates a load, which else gives zeros. */
template <typename T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) mg_vector {
  T at[N];
};
template <int N, typename T> static __forceinline__ void mg_load(T *to, const char *from) {
  const mg_vector<T, N> x = *(const mg_vector<T, N> *)from;
  #pragma unroll
  for (int u = 0; u < N; u++) to[u] = x.at[u];
}
template <int N, typename T> static __forceinline__ void mg_load(T *to, bool in, const char *from) {
  mg_vector<T, N> x = {};
  if (in) x = *(const mg_vector<T, N> *)from;
  #pragma unroll
  for (int u = 0; u < N; u++) to[u] = x.at[u];
}
template <int N, typename T> static __forceinline__ void mg_store(char *to, const T *from) {
  mg_vector<T, N> x;
  #pragma unroll
  for (int u = 0; u < N; u++) x.at[u] = from[u];
  *(mg_vector<T, N> *)to = x;
}
/* Scalar loads and stores of the first n of N elements; the others are loaded as 0. */
template <int N, typename T> static __forceinline__ void mg_load(T *to, const char *from, int n) {
  #pragma unroll
  for (int u = 0; u < N; u++) to[u] = u < n ? ((const T *)from)[u] : (T)0;
}
template <int N, typename T> static __forceinline__ void mg_store(char *to, const T *from, int n) {
  #pragma unroll
  for (int u = 0; u < N; u++)
    if (u < n) ((T *)to)[u] = from[u];
}
/* Round N floats to 16 bits and store them. */
#define MG_STORE_SMALL(NAME)                                                                       \
  template <int N> static __forceinline__ void mg_store_##NAME(char *to, const float *from) {      \
    if (N == 1) {                                                                                  \
      *(uint16_t *)to = mg_##NAME##_of_float(*from);                                               \
    } else {                                                                                       \
      uint32_t pairs[(N + 1) / 2];                                                                 \
      _Pragma("unroll") for (int u = 0; u < N / 2; u++)                                            \
        pairs[u] = mg_pack_##NAME(from[2 * u], from[2 * u + 1]);                                   \
      mg_store<(N + 1) / 2>(to, pairs);                                                            \
    }                                                                                              \
  }                                                                                                \
  template <int N> static __forceinline__ void mg_store_##NAME(char *to, const float *from, int n) { \
    _Pragma("unroll") for (int u = 0; u < N; u++)                                                  \
      if (u < n) ((uint16_t *)to)[u] = mg_##NAME##_of_float(from[u]);                              \
  }
MG_STORE_SMALL(float16)
MG_STORE_SMALL(bfloat16)
