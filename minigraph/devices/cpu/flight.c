#include <sched.h>
#include <time.h>
/* What a flight is known by: words of 64 bits, shared by the calls that begin it, look after it and
   wait for it.  MG_REQUEST holds what MPI calls the flight; MG_STATE is one of the states below; the
   rest are times in nanoseconds of the monotonic clock, sums over all flights but the first, and
   MPI's error.  The first flight waits for processes that come late: MG_FLIGHTS begins at -1. */
enum { MG_REQUEST, MG_STATE, MG_BEGAN, MG_LANDED, MG_FLOWN, MG_WAITED, MG_FLIGHTS, MG_ERROR };
enum { MG_IDLE, MG_FLYING, MG_HERE, MG_FAILED };

static inline int64_t mg_nanoseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}
/* Let MPI go on with a flight, and note when it has landed. */
static inline void mg_look(int64_t *flight, int64_t test) {
  if (flight[MG_STATE] != MG_FLYING) return;
  int landed = 0;
  int64_t status[16];
  const int error = ((int (*)(int64_t *, int *, void *))test)(flight + MG_REQUEST, &landed, status);
  if (error) {
    flight[MG_ERROR] = error;
    flight[MG_STATE] = MG_FAILED;
  } else if (landed) {
    flight[MG_LANDED] = mg_nanoseconds();
    flight[MG_STATE] = MG_HERE;
  }
}
