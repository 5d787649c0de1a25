/* Wait for a collective, and copy its result unless it is in its place.

   It fails where MPI does, and after some time, in nanoseconds: then Python goes on waiting, which
   sees signals and what the other processes do.

   The argument block: pending collective, MPI_Test, MPI's buffer, result, bytes of the result,
   whether it becomes zeros, and the time. */
int NAME(const int64_t *a, char **slots) {
  int64_t *pending = (int64_t *)a[0];
  const char *x = slots[a[2]] + a[3];
  char *y = slots[a[4]] + a[5];
  if (pending[MG_STATE] == MG_PENDING) {
    const int64_t begin = mg_nanoseconds();
    int64_t now = begin;
    for (int tests = 0; pending[MG_STATE] == MG_PENDING && now - begin < a[8]; tests++) {
      mg_progress(pending, a[1]);
      if (tests > 100) sched_yield(); /* the process that it waits for may need the processor */
      now = mg_nanoseconds();
    }
    if (pending[MG_TIMES] >= 0) pending[MG_WAITING_TIME] += now - begin;
  }
  if (pending[MG_STATE] == MG_PENDING || pending[MG_STATE] == MG_FAILED) return 1;
  if (pending[MG_STATE] == MG_DONE) {
    if (pending[MG_TIMES]++ >= 0) pending[MG_PENDING_TIME] += pending[MG_FINISHED] - pending[MG_STARTED];
    pending[MG_STATE] = MG_IDLE;
  }
  if (a[7]) memset(y, 0, a[6]);
  else if (x != y) memmove(y, x, a[6]);
  return 0;
}
