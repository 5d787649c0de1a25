/* Replaces omp.h for clang.  It implements the functions of LLVM's OpenMP runtime that clang's code
   calls (openmp/runtime/src/kmp_csupport.cpp), which need not be installed, with GNU's, whose threads
   oneDNN uses too. */
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
int omp_get_thread_num(void);
int omp_get_num_threads(void);
int omp_get_max_threads(void);
void omp_set_num_threads(int);
void GOMP_parallel(void (*run)(void *), void *data, unsigned threads, unsigned flags);
#define __real_GOMP_parallel GOMP_parallel /* not wrapped: mg_run_task flushes denormals */
void GOMP_barrier(void);
void GOMP_critical_start(void);
void GOMP_critical_end(void);
bool GOMP_loop_nonmonotonic_dynamic_start(long, long, long, long, long *, long *);
bool GOMP_loop_nonmonotonic_dynamic_next(long *, long *);
void GOMP_loop_end_nowait(void);
#define MG_KMP __attribute__((visibility("hidden"), unused))
#define MG_MAX_VARIABLES 24 /* of a parallel region */
typedef struct {
  void (*run)(int32_t *, int32_t *, ...);
  int count;
  void *v[MG_MAX_VARIABLES];
} mg_task;
typedef struct {
  int64_t begin, end, step, chunk;
  bool started;
} mg_loop;
static __thread int mg_requested_threads;
static __thread mg_loop mg_current_loop;
static void mg_run_task(void *p) {
  mg_task *t = p;
  void **v = t->v;
  int32_t thread = omp_get_thread_num(), zero = 0;
#if defined(__x86_64__)
  const unsigned mxcsr = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(mxcsr | 0x8040u); /* flush denormals, as gcc's kernels do */
#endif
  /* Surplus arguments are harmless. */
  t->run(&thread, &zero, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12],
         v[13], v[14], v[15], v[16], v[17], v[18], v[19], v[20], v[21], v[22], v[23]);
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(mxcsr);
#endif
}
MG_KMP void __kmpc_fork_call(void *location, int32_t count, void *run, ...) {
  mg_task task = {(void (*)(int32_t *, int32_t *, ...))run, count, {0}};
  if (count > MG_MAX_VARIABLES) __builtin_trap();
  va_list list;
  va_start(list, run);
  for (int i = 0; i < count; i++) task.v[i] = va_arg(list, void *);
  va_end(list);
  const int threads = mg_requested_threads;
  mg_requested_threads = 0;
#if defined(__x86_64__)
  const unsigned mxcsr = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(mxcsr & ~0x8040u); /* which a new thread inherits */
#endif
  GOMP_parallel(mg_run_task, &task, threads, 0);
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(mxcsr);
#endif
}
MG_KMP void __kmpc_push_num_threads(void *location, int32_t thread, int32_t threads) {
  mg_requested_threads = threads;
}
MG_KMP int32_t __kmpc_global_thread_num(void *location) { return omp_get_thread_num(); }
MG_KMP void __kmpc_serialized_parallel(void *location, int32_t thread) { mg_requested_threads = 0; }
MG_KMP void __kmpc_end_serialized_parallel(void *location, int32_t thread) {}
MG_KMP void __kmpc_barrier(void *location, int32_t thread) { GOMP_barrier(); }
/* Return 1: the thread combines its partial result, while others wait. */
MG_KMP int32_t __kmpc_reduce_nowait(void *location, int32_t thread, int32_t count, size_t size,
                                    void *parts, void (*combine)(void *, void *), void *lock) {
  GOMP_critical_start();
  return 1;
}
MG_KMP void __kmpc_end_reduce_nowait(void *location, int32_t thread, void *lock) { GOMP_critical_end(); }
/* Split a loop evenly; the first threads have one iteration more.  `upper` is the last index. */
#define MG_STATIC(T, name) \
  MG_KMP void name(void *location, int32_t thread, int32_t schedule, int32_t *last, T *lower, \
                   T *upper, T *stride, T step, T chunk) { \
    const int64_t threads = omp_get_num_threads(), i = omp_get_thread_num(); \
    const int64_t iterations = ((int64_t)*upper - *lower) / step + 1, per_thread = iterations / threads; \
    const int64_t extra = iterations % threads, first = i * per_thread + (i < extra ? i : extra); \
    *stride = iterations * step; \
    *lower += first * step; \
    *upper = *lower + (per_thread + (i < extra) - 1) * step; \
    *last = first + per_thread + (i < extra) == iterations; \
  }
MG_STATIC(int32_t, __kmpc_for_static_init_4)
MG_STATIC(int64_t, __kmpc_for_static_init_8)
MG_KMP void __kmpc_for_static_fini(void *location, int32_t thread) {}
#define MG_DYNAMIC(T, n) \
  MG_KMP void __kmpc_dispatch_init_##n(void *location, int32_t thread, int32_t schedule, T lower, \
                                       T upper, T step, T chunk) { \
    mg_current_loop = (mg_loop){lower, (int64_t)upper + 1, step, chunk < 1 ? 1 : chunk, false}; \
  } \
  MG_KMP int __kmpc_dispatch_next_##n(void *location, int32_t thread, int32_t *last, T *lower, \
                                      T *upper, T *stride) { \
    const mg_loop l = mg_current_loop; \
    long begin, end; \
    mg_current_loop.started = true; \
    if (l.started ? !GOMP_loop_nonmonotonic_dynamic_next(&begin, &end) \
                : !GOMP_loop_nonmonotonic_dynamic_start(l.begin, l.end, l.step, l.chunk, &begin, \
                                                        &end)) { \
      GOMP_loop_end_nowait(); \
      return 0; \
    } \
    *lower = begin; \
    *upper = end - l.step; \
    *stride = l.step; \
    *last = end >= l.end; \
    return 1; \
  }
MG_DYNAMIC(int32_t, 4)
MG_DYNAMIC(int64_t, 8)
MG_KMP void __kmpc_dispatch_deinit(void *location, int32_t thread) {}
