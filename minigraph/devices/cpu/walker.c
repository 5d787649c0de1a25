/* Walk over steps, each {function, argument block}; return whether one stopped.  `failed` becomes
   -1, which one has failed, or -2 less which one has paused.

   `walk` has the addresses of the steps, their count, the addresses of the table `slots` and of
   `failed`, `threads`; then of NumPy arrays, whose elements' addresses are the first of the table,
   the count, where in an array its address is, and their table, of 0 before there are any.

   Denormals are flushed to zero while a program runs: they would make a trained network tens of
   times slower.  Each thread gets its settings back at the end.  Of the threads of a team that is
   our kernels' own affair (`prelude.c`); `threads` is how many a library's kernels use, or 1. */
#if defined(__x86_64__)
#define NAME_KNOWN 0x80000000u /* no setting has this bit */
static _Thread_local unsigned NAME_found; /* a thread's settings before the walk */
static void NAME_flush(void *caller) {
  (void)caller;
  NAME_found = __builtin_ia32_stmxcsr() | NAME_KNOWN;
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | MG_FLUSH_DENORMALS);
}
/* A thread that was started in between began with the settings of this walk. */
static void NAME_restore(void *caller) {
  __builtin_ia32_ldmxcsr(NAME_found ? NAME_found & ~NAME_KNOWN : *(unsigned *)caller);
  NAME_found = 0;
}
static void NAME_each(void (*run)(void *), unsigned *caller, int64_t threads) {
  if (threads <= 1) run(caller);
  else __real_GOMP_parallel(run, caller, threads, 0);
}
#endif
int NAME(const int64_t *walk) {
  const int64_t *steps = (const int64_t *)walk[0], count = walk[1], threads = walk[4];
  char **slots = (char **)walk[2];
  int64_t *failed = (int64_t *)walk[3];
  char *const *arrays = (char *const *)walk[7];
  for (int64_t i = 0; i < walk[5]; i++)
    if (arrays[i]) slots[i] = *(char **)(arrays[i] + walk[6]);
  const int max_threads = omp_get_max_threads();
#if defined(__x86_64__)
  unsigned caller = __builtin_ia32_stmxcsr();
  NAME_each(NAME_flush, &caller, threads);
#endif
  *failed = -1;
  for (int64_t i = 0; i < count && *failed == -1; i++) {
    int (*run)(const int64_t *, char **) = (int (*)(const int64_t *, char **))steps[2 * i];
    const int stopped = run((const int64_t *)steps[2 * i + 1], slots);
    if (stopped) *failed = stopped == MG_PAUSED ? -2 - i : i;
  }
#if defined(__x86_64__)
  NAME_each(NAME_restore, &caller, threads);
#endif
  omp_set_num_threads(max_threads);
  return *failed != -1;
}
#undef NAME_KNOWN
