#include <sched.h>
#include <time.h>
/* A pending collective: words of 64 bits, shared by the calls that begin it, let MPI progress, and
   wait for it.  MG_REQUEST is MPI's request; MG_STATE is one of the states below; the rest are times
   in nanoseconds of the monotonic clock, sums over all runs but the first, and MPI's error.  The
   first run waits for processes that come late: MG_TIMES begins at -1. */
enum {
  MG_REQUEST, MG_STATE, MG_STARTED, MG_FINISHED, MG_PENDING_TIME, MG_WAITING_TIME, MG_TIMES, MG_ERROR
};
enum { MG_IDLE, MG_PENDING, MG_DONE, MG_FAILED };

static inline int64_t mg_nanoseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}
/* Let MPI progress, and note when the collective has finished. */
static inline void mg_progress(int64_t *pending, int64_t test) {
  if (pending[MG_STATE] != MG_PENDING) return;
  int finished = 0;
  int64_t status[16];
  const int error = ((int (*)(int64_t *, int *, void *))test)(pending + MG_REQUEST, &finished, status);
  if (error) {
    pending[MG_ERROR] = error;
    pending[MG_STATE] = MG_FAILED;
  } else if (finished) {
    pending[MG_FINISHED] = mg_nanoseconds();
    pending[MG_STATE] = MG_DONE;
  }
}
