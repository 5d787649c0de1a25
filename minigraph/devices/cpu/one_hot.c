/* One-hot vectors.  Returns 1 for a label out of range, before anything is written.

   The argument block: the numbers of labels and of elements of a vector, then the operands.

   T    type of a label
   R    type of an element
   ONE  the value 1 of type R */
int NAME(const int64_t *a, char **slots) {
  const int64_t count = a[0], size = a[1];
  const T *label = (const T *)(slots[a[2]] + a[3]);
  R *y = (R *)(slots[a[4]] + a[5]);
  for (int64_t i = 0; i < count; i++)
    if (label[i] < 0 || (uint64_t)label[i] >= (uint64_t)size) return 1;
  memset(y, 0, count * size * sizeof(R));
  for (int64_t i = 0; i < count; i++) y[i * size + (int64_t)label[i]] = ONE;
  return 0;
}
