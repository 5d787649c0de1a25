#include <sched.h>
#include <time.h>
/* The 64-bit words of a pending collective, which the kernels that begin it, poll MPI and await it
   share.

   MG_REQUEST       MPI's request
   MG_STATE         one of the states below
   MG_STARTED       time of the start in nanoseconds; MG_FINISHED that of the end
   MG_PENDING_TIME  nanoseconds from start to end, MG_WAITING_TIME of waiting, MG_TIMES the number of
                    runs: sums over all runs but the first, which waits for processes that start late
                    (MG_TIMES starts at -1)
   MG_ERROR         MPI's error */
enum {
  MG_REQUEST, MG_STATE, MG_STARTED, MG_FINISHED, MG_PENDING_TIME, MG_WAITING_TIME, MG_TIMES, MG_ERROR
};
enum { MG_IDLE, MG_PENDING, MG_DONE, MG_FAILED };

static inline int64_t mg_nanoseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}
/* Test the request, which lets MPI make progress, and update the state. */
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
