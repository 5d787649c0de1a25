/* Run a list of kernels several times: the steps of a loop.  The block: the number of steps; the
   kernels, {function, argument block}, and how many; their table of addresses; how many rows the
   three tables have that follow; where to keep the step and the kernel to go on with, and whether to.

   still   {slot, outer slot, offset}: memory that stays where it is
   moving  {slot, outer slot, offset, stride}: a slice for each step
   carry   {slot that is read, slot that is written, outer slot and offset of the first value, of the
           last, of memory for two in between (-1: it is written to a slice), bytes of one, and of
           the space for one} */
int NAME(const int64_t *a, char **outer) {
  const int64_t steps = a[0], kernels = a[2], stills = a[4], slices = a[5], carries = a[6];
  const int64_t *rows = (const int64_t *)a[1];
  char **slots = (char **)a[3];
  int64_t *next = (int64_t *)a[7], first = next[2] ? next[1] : 0;
  const int64_t *still = a + 8, *moving = still + 3 * stills, *carry = moving + 4 * slices;
  for (int64_t i = 0; i < stills; i++)
    slots[still[3 * i]] = outer[still[3 * i + 1]] + still[3 * i + 2];
  for (int64_t i = 0; i < carries && !next[2]; i++)
    slots[carry[10 * i]] = outer[carry[10 * i + 2]] + carry[10 * i + 3];
  int64_t t = next[2] ? next[0] : 0;
  NAME_clock clock = NAME_begin(t);
  next[2] = 0;
  for (; t < steps; t++) {
    for (int64_t i = 0; i < slices; i++) {
      const int64_t *m = moving + 4 * i;
      slots[m[0]] = outer[m[1]] + m[2] + t * m[3];
    }
    for (int64_t i = 0; i < carries; i++) {
      const int64_t *c = carry + 10 * i;
      if (c[6] < 0) continue;
      slots[c[1]] = t + 1 < steps ? outer[c[6]] + c[7] + (t & 1) * c[9] : outer[c[4]] + c[5];
    }
    for (int64_t k = first; k < kernels; k++) {
      int (*run)(const int64_t *, char **) = (int (*)(const int64_t *, char **))rows[2 * k];
      const int stopped = run((const int64_t *)rows[2 * k + 1], slots);
      if (stopped) return stopped == MG_PAUSED ? NAME_paused(next, t, k) : 1;
    }
    first = 0;
    for (int64_t i = 0; i < carries; i++) slots[carry[10 * i]] = slots[carry[10 * i + 1]];
    if (t + 1 == clock.look && t + 1 < steps && NAME_late(&clock)) return NAME_paused(next, t + 1, 0);
  }
  for (int64_t i = 0; i < carries; i++) {
    const int64_t *c = carry + 10 * i;
    char *last = outer[c[4]] + c[5];
    if (slots[c[0]] != last) memcpy(last, slots[c[0]], c[8]);
  }
  return 0;
}
