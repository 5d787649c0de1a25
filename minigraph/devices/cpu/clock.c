/* When a loop pauses: every 0.1 seconds, so that Python may run the handlers of signals. */
#include <time.h>
#define NAME_PAUSE 100000000 /* nanoseconds */
typedef struct {
  int64_t every, look, last, until; /* steps between two looks, the step of the next one; times */
} NAME_clock;
static int64_t NAME_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec * (int64_t)1000000000 + now.tv_nsec;
}
static NAME_clock NAME_begin(int64_t step) {
  const int64_t now = NAME_now();
  return (NAME_clock){1, step + 1, now, now + NAME_PAUSE};
}
/* Whether to pause before the step at which the clock looks. */
static int NAME_late(NAME_clock *clock) {
  const int64_t now = NAME_now();
  if (now > clock->until) return 1;
  clock->every = now - clock->last < NAME_PAUSE / 100 ? 8 * clock->every : (clock->every + 1) / 2;
  clock->look += clock->every, clock->last = now;
  return 0;
}
static int NAME_paused(int64_t *next, int64_t step, int64_t kernel) {
  next[0] = step, next[1] = kernel, next[2] = 1;
  return MG_PAUSED;
}
#undef NAME_PAUSE
