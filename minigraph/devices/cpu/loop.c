/* Run a list of kernels for each step of a loop.

   The argument block: the number of steps; the address of the kernels, {function, argument block}, and
   their number; the address of their table of slots; the numbers of rows of the three tables
   that follow it; the address of the progress, {step, kernel, whether to continue there}.

   fixed   {slot, outer slot, offset}: memory that is the same in each step
   sliced  {slot, outer slot, offset, stride}: a slice for each step
   carry   {slot that is read, slot that is written, outer slot and offset of the first value, of the
           last, and of two buffers (-1: the carry is written to a slice), bytes of a value, bytes of a
           buffer} */
int NAME(const int64_t *a, char **outer) {
  const int64_t steps = a[0], kernels = a[2];
  const int64_t fixed_count = a[4], sliced_count = a[5], carry_count = a[6];
  const int64_t *kernel_table = (const int64_t *)a[1];
  char **slots = (char **)a[3];
  int64_t *progress = (int64_t *)a[7], first = progress[2] ? progress[1] : 0;
  const int64_t *fixed = a + 8, *sliced = fixed + 3 * fixed_count, *carry = sliced + 4 * sliced_count;
  for (int64_t i = 0; i < fixed_count; i++)
    slots[fixed[3 * i]] = outer[fixed[3 * i + 1]] + fixed[3 * i + 2];
  for (int64_t i = 0; i < carry_count && !progress[2]; i++)
    slots[carry[10 * i]] = outer[carry[10 * i + 2]] + carry[10 * i + 3];
  int64_t t = progress[2] ? progress[0] : 0;
  NAME_clock clock = NAME_start_clock(t);
  progress[2] = 0;
  for (; t < steps; t++) {
    for (int64_t i = 0; i < sliced_count; i++) {
      const int64_t *slice = sliced + 4 * i;
      slots[slice[0]] = outer[slice[1]] + slice[2] + t * slice[3];
    }
    for (int64_t i = 0; i < carry_count; i++) {
      const int64_t *c = carry + 10 * i;
      if (c[6] < 0) continue;
      slots[c[1]] = t + 1 < steps ? outer[c[6]] + c[7] + (t & 1) * c[9] : outer[c[4]] + c[5];
    }
    for (int64_t k = first; k < kernels; k++) {
      int (*run)(const int64_t *, char **) = (int (*)(const int64_t *, char **))kernel_table[2 * k];
      const int stopped = run((const int64_t *)kernel_table[2 * k + 1], slots);
      if (stopped) return stopped == MG_PAUSED ? NAME_pause(progress, t, k) : 1;
    }
    first = 0;
    for (int64_t i = 0; i < carry_count; i++) slots[carry[10 * i]] = slots[carry[10 * i + 1]];
    if (t + 1 == clock.next_check && t + 1 < steps && NAME_must_pause(&clock))
      return NAME_pause(progress, t + 1, 0);
  }
  for (int64_t i = 0; i < carry_count; i++) {
    const int64_t *c = carry + 10 * i;
    char *last = outer[c[4]] + c[5];
    if (slots[c[0]] != last) memcpy(last, slots[c[0]], c[8]);
  }
  return 0;
}
