/* Wait for a collective, and copy its result unless it is in its place.

   It fails where MPI does, and after some time, in nanoseconds: then Python goes on waiting, which
   sees signals and what the other processes do.

   The argument block: flight, MPI_Test, memory that has flown, result, bytes of the result, whether
   it becomes zeros, and the time. */
int NAME(const int64_t *a, char **slots) {
  int64_t *flight = (int64_t *)a[0];
  const char *x = slots[a[2]] + a[3];
  char *y = slots[a[4]] + a[5];
  if (flight[MG_STATE] == MG_FLYING) {
    const int64_t begin = mg_nanoseconds();
    int64_t now = begin;
    for (int looks = 0; flight[MG_STATE] == MG_FLYING && now - begin < a[8]; looks++) {
      mg_look(flight, a[1]);
      if (looks > 100) sched_yield(); /* the process that it waits for may need the processor */
      now = mg_nanoseconds();
    }
    if (flight[MG_FLIGHTS] >= 0) flight[MG_WAITED] += now - begin;
  }
  if (flight[MG_STATE] == MG_FLYING || flight[MG_STATE] == MG_FAILED) return 1;
  if (flight[MG_STATE] == MG_HERE) {
    if (flight[MG_FLIGHTS]++ >= 0) flight[MG_FLOWN] += flight[MG_LANDED] - flight[MG_BEGAN];
    flight[MG_STATE] = MG_IDLE;
  }
  if (a[7]) memset(y, 0, a[6]);
  else if (x != y) memmove(y, x, a[6]);
  return 0;
}
