/* Cumulative sums, products and recurrences; one thread for each row, or each column of the later axes.

   T, W, S, LOAD, STORE  of an element
   IDENTITY              the total before the first element
   AT                    position of element j in the order of the scan
   OUT                   the word with the address of the result, which follows a recurrence's factors
   COMBINE               the new total from `total` and the element at `at` */
KERNEL {
  EACH_ELEMENT {
    const I n = a.w[SIZES + 1], inner = a.w[SIZES + 2];
    const I begin = e / inner * n * inner + e % inner;
    const T *p = (const T *)mg_global(a.w[0]) + begin;
    const T *f = (const T *)mg_global(a.w[OUT - 1]) + begin;
    T *q = (T *)mg_global(a.w[OUT]) + begin;
    S total = IDENTITY;
    for (I j = 0; j < n; j++) {
      const I at = (AT) * inner;
      total = COMBINE;
      q[at] = STORE((W)total);
    }
  }
}
