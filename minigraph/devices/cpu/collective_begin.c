/* Begin a collective.  It fails where MPI does, and where the flight before has not ended.

   The argument block: flight, input, memory that flies, bytes of the input, where among the bytes
   that fly it stands, then what MPI is told.

   CALL  MPI's function with its arguments */
int NAME(const int64_t *a, char **slots) {
  int64_t *flight = (int64_t *)a[0], *request = flight + MG_REQUEST;
  const char *x = slots[a[1]] + a[2];
  char *y = slots[a[3]] + a[4];
  void *const in_place = (void *)a[7], *const function = (void *)a[8];
  void *const type = (void *)a[10], *const comm = (void *)a[11], *const how = (void *)a[12];
  const int64_t count = a[9];
  if (flight[MG_STATE] == MG_IDLE) {
    if (x != y + a[6]) memmove(y + a[6], x, a[5]);
    flight[MG_BEGAN] = mg_nanoseconds();
    flight[MG_ERROR] = CALL;
    flight[MG_STATE] = flight[MG_ERROR] ? MG_FAILED : MG_FLYING;
  } else {
    flight[MG_ERROR] = 0;
    flight[MG_STATE] = MG_FAILED;
  }
  return flight[MG_STATE] == MG_FAILED;
}
