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
/* C++ has one for two floats and one for two doubles, and C any number for a double. */
static inline double copysign(int x, double y) { return copysign((double)x, y); }
#endif

/* An address in device memory: told so, the compiler need not find out at each access. */
static __forceinline__ char *mg_global(long long address) {
  char *p = (char *)address;
  __builtin_assume(__isGlobal(p));
  return p;
}
/* Divide *rest by an extent; return the remainder.  64-bit division takes several times longer. */
static __forceinline__ int64_t mg_take(int64_t *rest, int64_t extent) {
  const uint64_t x = *rest, n = extent;
  uint64_t whole;
  if ((x | n) >> 32)
    whole = x / n;
  else
    whole = (uint32_t)x / (uint32_t)n;
  *rest = whole;
  return x - whole * n;
}
/* Neighbours in memory: all N at once where they are aligned, else the first n one by one. */
template <typename T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) mg_vector {
  T at[N];
};
template <int N, typename T>
static __forceinline__ void mg_load(T *to, const char *from, int64_t n, bool vector) {
  if (vector && n == N) {
    const mg_vector<T, N> x = *(const mg_vector<T, N> *)from;
    #pragma unroll
    for (int u = 0; u < N; u++) to[u] = x.at[u];
  } else {
    #pragma unroll
    for (int u = 0; u < N; u++) to[u] = u < n ? ((const T *)from)[u] : (T)0;
  }
}
template <int N, typename T>
static __forceinline__ void mg_store(char *to, const T *from, int64_t n, bool vector) {
  if (vector && n == N) {
    mg_vector<T, N> x;
    #pragma unroll
    for (int u = 0; u < N; u++) x.at[u] = from[u];
    *(mg_vector<T, N> *)to = x;
  } else {
    #pragma unroll
    for (int u = 0; u < N; u++)
      if (u < n) ((T *)to)[u] = from[u];
  }
}
