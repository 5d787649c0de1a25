/* Fill an array.

   The argument block: threads, 1, elements, the array; see `mg_parallel_for`.

   T      type of an element
   VALUE  value of all elements */
static void NAME_range(const int64_t *a, char **slots, int64_t begin, int64_t end) {
  T *y = (T *)(slots[a[3]] + a[4]);
  for (int64_t j = begin; j < end; j++) y[j] = VALUE;
}
int NAME(const int64_t *a, char **slots) {
  mg_parallel_for(NAME_range, a, slots);
  return 0;
}
