/* Cumulative sums, products and recurrences: a thread does a row, or what belongs to one place of
   the later axes, one element after the other.

   T, W, S, LOAD, STORE  of an element
   NONE                  what stands before the first one
   AT                    where element j of the order lies
   OUT                   the word with the address of the result, behind a recurrence's factors
   JOIN                  what is made of the total and the element at `at` */
KERNEL {
  EACH_ELEMENT {
    const I n = a.w[SIZES + 1], inner = a.w[SIZES + 2];
    const I begin = e / inner * n * inner + e % inner;
    const T *p = (const T *)mg_global(a.w[0]) + begin;
    const T *f = (const T *)mg_global(a.w[OUT - 1]) + begin;
    T *q = (T *)mg_global(a.w[OUT]) + begin;
    S total = NONE;
    for (I j = 0; j < n; j++) {
      const I at = (AT) * inner;
      total = JOIN;
      q[at] = STORE((W)total);
    }
  }
}
