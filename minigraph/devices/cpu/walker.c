/* Run the steps of a program, each {function, argument block}, until one stops; return whether one did.
   `failed` becomes -1, the index of the step that failed, or -2 minus the index of one that paused.

   This is a built-in function of Python, by its stable ABI: a call of one costs a third of a call by
   ctypes.  `arrays` are the NumPy arrays of a call, whose addresses are the first slots; without any
   the slots stay.  `self` is a NumPy array of 64-bit integers: the address and number of the steps,
   the addresses of the table `slots` and of `failed`, and `threads`; then those of PyEval_SaveThread,
   PyEval_RestoreThread and PyBool_FromLong.

   Denormals are flushed to zero while a program runs: they would make the training of a network tens of
   times slower.  `threads` is the number of threads of library kernels, or 1: they keep the flag until
   the end of the walk, when MXCSR is restored.  Parallel regions of our own kernels set it themselves
   (`prelude.c`). */
#if defined(__x86_64__)
#define NAME_SAVED 0x80000000u /* a reserved bit of MXCSR */
static _Thread_local unsigned NAME_mxcsr; /* of a thread before the walk, with NAME_SAVED; else 0 */
static void NAME_flush(void *caller) {
  (void)caller;
  NAME_mxcsr = __builtin_ia32_stmxcsr() | NAME_SAVED;
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | MG_FLUSH_DENORMALS);
}
/* Restore MXCSR, of threads that started during the walk to the caller's. */
static void NAME_restore(void *caller) {
  __builtin_ia32_ldmxcsr(NAME_mxcsr ? NAME_mxcsr & ~NAME_SAVED : *(unsigned *)caller);
  NAME_mxcsr = 0;
}
static void NAME_in_threads(void (*run)(void *), unsigned *caller, int64_t threads) {
  if (threads <= 1) run(caller);
  else __real_GOMP_parallel(run, caller, threads, 0);
}
#endif
void *NAME(void *self, void *const *arrays, intptr_t given) {
  const int64_t *walk = *(int64_t **)((char *)self + OFFSET);
  const int64_t *steps = (const int64_t *)walk[0], count = walk[1], threads = walk[4];
  char **slots = (char **)walk[2];
  int64_t *failed = (int64_t *)walk[3];
  for (intptr_t i = 0; i < given; i++) slots[i] = *(char **)((char *)arrays[i] + OFFSET);
  void *const python_thread = ((void *(*)(void))walk[5])();
  const int max_threads = omp_get_max_threads();
#if defined(__x86_64__)
  unsigned caller = __builtin_ia32_stmxcsr();
  NAME_in_threads(NAME_flush, &caller, threads);
#endif
  *failed = -1;
  for (int64_t i = 0; i < count && *failed == -1; i++) {
    int (*run)(const int64_t *, char **) = (int (*)(const int64_t *, char **))steps[2 * i];
    const int stopped = run((const int64_t *)steps[2 * i + 1], slots);
    if (stopped) *failed = stopped == MG_PAUSED ? -2 - i : i;
  }
#if defined(__x86_64__)
  NAME_in_threads(NAME_restore, &caller, threads);
#endif
  omp_set_num_threads(max_threads);
  ((void (*)(void *))walk[6])(python_thread);
  return ((void *(*)(long))walk[7])(*failed != -1);
}
#undef NAME_SAVED
