/* Walk over steps, each {function, argument block}; return whether one failed.  `failed` becomes
   which, or -1.

   Denormals are flushed to zero while a program runs: they would make a trained network tens of
   times slower.  The caller's settings come back at the end; OpenMP's other threads keep ours, once
   a walk over no steps has told them. */
int64_t NAME(const int64_t *steps, int64_t count, char **slots, int64_t threads, int64_t *failed) {
  const int max_threads = omp_get_max_threads();
#if defined(__x86_64__)
  const unsigned saved = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(saved | 0x8040);
  if (!count) {
    #pragma omp parallel num_threads(threads)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
  }
#endif
  *failed = -1;
  for (int64_t i = 0; i < count && *failed < 0; i++) {
    int (*run)(const int64_t *, char **) = (int (*)(const int64_t *, char **))steps[2 * i];
    if (run((const int64_t *)steps[2 * i + 1], slots)) *failed = i;
  }
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(saved);
#endif
  omp_set_num_threads(max_threads);
  return *failed >= 0;
}
