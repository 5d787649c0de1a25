/* Wait for a collective, and copy its result to its destination.

   Returns 1 if MPI failed, or after a time limit: then Python continues to wait, handles signals and
   watches the other processes.

   The argument block: the address of the pending collective, MPI_Test, slot and offset of MPI's buffer
   and of the result, bytes of the result, whether to fill it with zeros instead, and the time limit in
   nanoseconds. */
int NAME(const int64_t *a, char **slots) {
  int64_t *pending = (int64_t *)a[0];
  const char *x = slots[a[2]] + a[3];
  char *y = slots[a[4]] + a[5];
  if (pending[MG_STATE] == MG_PENDING) {
    const int64_t start = mg_nanoseconds();
    int64_t now = start;
    for (int tests = 0; pending[MG_STATE] == MG_PENDING && now - start < a[8]; tests++) {
      mg_progress(pending, a[1]);
      if (tests > 100) sched_yield(); /* the other process may need this processor */
      now = mg_nanoseconds();
    }
    if (pending[MG_TIMES] >= 0) pending[MG_WAITING_TIME] += now - start;
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
