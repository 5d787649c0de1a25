/* Copy x if all bytes of a condition are 1; else return 1, and write nothing.

   The argument block: bytes of x, elements of the condition, then the operands. */
int NAME(const int64_t *a, char **slots) {
  const char *x = slots[a[2]] + a[3], *condition = slots[a[4]] + a[5];
  char *y = slots[a[6]] + a[7];
  if (memchr(condition, 0, a[1])) return 1;
  if (x != y) memcpy(y, x, a[0]);
  return 0;
}
