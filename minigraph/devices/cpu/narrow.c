/* y = x in a smaller type of integers; whether all fit into it.

   S         type of x
   T         type of y
   UNSIGNED  whether S has no sign */
int NAME(const S *restrict x, T *restrict y, int64_t n) {
  S lost = 0;
  #pragma omp simd reduction(|:lost)
  for (int64_t i = 0; i < n; i++) {
    const T v = (T)x[i];
    y[i] = v;
    lost |= ((S)v ^ x[i]) | (S)(UNSIGNED && v < 0);
  }
  return !lost;
}
