/* The clock of a loop, which pauses every 0.1 seconds so that Python can run signal handlers. */
#include <time.h>
#define NAME_PAUSE 100000000 /* nanoseconds */
typedef struct {
  int64_t interval, next_check; /* steps between two checks of the time, and the step of the next */
  int64_t last_check, deadline; /* times */
} NAME_clock;
static int64_t NAME_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec * (int64_t)1000000000 + now.tv_nsec;
}
static NAME_clock NAME_start_clock(int64_t step) {
  const int64_t now = NAME_now();
  return (NAME_clock){1, step + 1, now, now + NAME_PAUSE};
}
/* Check the time; return whether to pause before this step. */
static int NAME_must_pause(NAME_clock *clock) {
  const int64_t now = NAME_now();
  if (now > clock->deadline) return 1;
  clock->interval =
      now - clock->last_check < NAME_PAUSE / 100 ? 8 * clock->interval : (clock->interval + 1) / 2;
  clock->next_check += clock->interval, clock->last_check = now;
  return 0;
}
/* Save where to continue, and return MG_PAUSED. */
static int NAME_pause(int64_t *progress, int64_t step, int64_t kernel) {
  progress[0] = step, progress[1] = kernel, progress[2] = 1;
  return MG_PAUSED;
}
#undef NAME_PAUSE
