/* What stands in place of omp.h for clang: its parallel regions, and loops that threads share, run on
   the threads of GNU's library, which are oneDNN's, too.  Clang calls LLVM's library, which need not be
   there.  The names and arguments are those of its interface (openmp/runtime/src/kmp_csupport.cpp). */
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
#define __real_GOMP_parallel GOMP_parallel /* nothing is wrapped: mg_run_task does that work */
void GOMP_barrier(void);
void GOMP_critical_start(void);
void GOMP_critical_end(void);
bool GOMP_loop_nonmonotonic_dynamic_start(long, long, long, long, long *, long *);
bool GOMP_loop_nonmonotonic_dynamic_next(long *, long *);
void GOMP_loop_end_nowait(void);
#define MG_KMP __attribute__((visibility("hidden"), unused))
#define MG_MOST 24 /* variables of a region */
typedef struct {
  void (*run)(int32_t *, int32_t *, ...);
  int count;
  void *v[MG_MOST];
} mg_task;
typedef struct {
  int64_t begin, end, step, chunk;
  bool begun;
} mg_loop;
static __thread int mg_wanted;
static __thread mg_loop mg_current;
static void mg_run_task(void *p) {
  mg_task *t = p;
  void **v = t->v;
  int32_t me = omp_get_thread_num(), zero = 0;
#if defined(__x86_64__)
  const unsigned found = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(found | 0x8040u); /* denormals are 0, as in regions of gcc's kernels */
#endif
  /* Those that it does not take do no harm. */
  t->run(&me, &zero, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12],
         v[13], v[14], v[15], v[16], v[17], v[18], v[19], v[20], v[21], v[22], v[23]);
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(found);
#endif
}
MG_KMP void __kmpc_fork_call(void *at, int32_t count, void *run, ...) {
  mg_task task = {(void (*)(int32_t *, int32_t *, ...))run, count, {0}};
  if (count > MG_MOST) __builtin_trap();
  va_list list;
  va_start(list, run);
  for (int i = 0; i < count; i++) task.v[i] = va_arg(list, void *);
  va_end(list);
  const int threads = mg_wanted;
  mg_wanted = 0;
#if defined(__x86_64__)
  const unsigned mine = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(mine & ~0x8040u); /* a thread that starts here inherits it */
#endif
  GOMP_parallel(mg_run_task, &task, threads, 0);
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(mine);
#endif
}
MG_KMP void __kmpc_push_num_threads(void *at, int32_t me, int32_t threads) { mg_wanted = threads; }
MG_KMP int32_t __kmpc_global_thread_num(void *at) { return omp_get_thread_num(); }
MG_KMP void __kmpc_serialized_parallel(void *at, int32_t me) { mg_wanted = 0; }
MG_KMP void __kmpc_end_serialized_parallel(void *at, int32_t me) {}
MG_KMP void __kmpc_barrier(void *at, int32_t me) { GOMP_barrier(); }
/* 1 lets the thread add its part to the whole, while others wait. */
MG_KMP int32_t __kmpc_reduce_nowait(void *at, int32_t me, int32_t count, size_t size, void *parts,
                                    void (*join)(void *, void *), void *lock) {
  GOMP_critical_start();
  return 1;
}
MG_KMP void __kmpc_end_reduce_nowait(void *at, int32_t me, void *lock) { GOMP_critical_end(); }
/* An equal share for each thread, the first ones with one more; `upper` is the last index. */
#define MG_STATIC(T, name) \
  MG_KMP void name(void *at, int32_t me, int32_t how, int32_t *last, T *lower, T *upper, T *stride, \
                   T step, T chunk) { \
    const int64_t threads = omp_get_num_threads(), i = omp_get_thread_num(); \
    const int64_t all = ((int64_t)*upper - *lower) / step + 1, each = all / threads; \
    const int64_t more = all % threads, before = i * each + (i < more ? i : more); \
    *stride = all * step; \
    *lower += before * step; \
    *upper = *lower + (each + (i < more) - 1) * step; \
    *last = before + each + (i < more) == all; \
  }
MG_STATIC(int32_t, __kmpc_for_static_init_4)
MG_STATIC(int64_t, __kmpc_for_static_init_8)
MG_KMP void __kmpc_for_static_fini(void *at, int32_t me) {}
#define MG_DYNAMIC(T, n) \
  MG_KMP void __kmpc_dispatch_init_##n(void *at, int32_t me, int32_t how, T lower, T upper, T step, \
                                       T chunk) { \
    mg_current = (mg_loop){lower, (int64_t)upper + 1, step, chunk < 1 ? 1 : chunk, false}; \
  } \
  MG_KMP int __kmpc_dispatch_next_##n(void *at, int32_t me, int32_t *last, T *lower, T *upper, \
                                      T *stride) { \
    const mg_loop l = mg_current; \
    long begin, end; \
    mg_current.begun = true; \
    if (l.begun ? !GOMP_loop_nonmonotonic_dynamic_next(&begin, &end) \
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
MG_KMP void __kmpc_dispatch_deinit(void *at, int32_t me) {}
