/* Places in sorted rows: a thread does an element of v [rows, m]; x is [rows, n].  NaN is larger
   than any number.

   T, W, LOAD  of an element
   RIGHT       whether equal elements come before it */
#define LESS(p, q) (p < q || (q != q && p == p))
KERNEL {
  EACH_ELEMENT {
    const I n = a.w[SIZES + 1], m = a.w[SIZES + 2];
    const T *row = (const T *)mg_global(a.w[0]) + e / m * n;
    const W p = LOAD(((const T *)mg_global(a.w[1]))[e]);
    I low = 0, high = n;
    while (low < high) {
      const I middle = low + (high - low) / 2;
      const W q = LOAD(row[middle]);
#if RIGHT
      const bool behind = !LESS(p, q);
#else
      const bool behind = LESS(q, p);
#endif
      if (behind)
        low = middle + 1;
      else
        high = middle;
    }
    ((int64_t *)mg_global(a.w[2]))[e] = low;
  }
}
#undef LESS
