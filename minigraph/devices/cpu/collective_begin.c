/* Start a collective.  Returns 1 if MPI failed, or if the previous run has not ended.

   The argument block: the address of the pending collective, slot and offset of the input and of MPI's
   buffer, bytes of the input, its offset in the buffer, then arguments of MPI: MPI_IN_PLACE, the
   function, count, type, communicator, and operator or root.

   CALL  the call of MPI's function */
int NAME(const int64_t *a, char **slots) {
  int64_t *pending = (int64_t *)a[0], *request = pending + MG_REQUEST;
  const char *x = slots[a[1]] + a[2];
  char *y = slots[a[3]] + a[4];
  void *const in_place = (void *)a[7], *const function = (void *)a[8];
  void *const type = (void *)a[10], *const comm = (void *)a[11], *const op_or_root = (void *)a[12];
  const int64_t count = a[9];
  if (pending[MG_STATE] == MG_IDLE) {
    if (x != y + a[6]) memmove(y + a[6], x, a[5]);
    pending[MG_STARTED] = mg_nanoseconds();
    pending[MG_ERROR] = CALL;
    pending[MG_STATE] = pending[MG_ERROR] ? MG_FAILED : MG_PENDING;
  } else {
    pending[MG_ERROR] = 0;
    pending[MG_STATE] = MG_FAILED;
  }
  return pending[MG_STATE] == MG_FAILED;
}
