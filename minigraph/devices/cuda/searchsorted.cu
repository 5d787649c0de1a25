/* Binary search in sorted rows x [rows, n]; one thread for each element of v [rows, m].  NaN is larger
   than any number.

   T, W, LOAD  of an element
   RIGHT       whether to insert after equal elements */
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
      const bool after = !LESS(p, q);
#else
      const bool after = LESS(q, p);
#endif
      if (after)
        low = middle + 1;
      else
        high = middle;
    }
    ((int64_t *)mg_global(a.w[2]))[e] = low;
  }
}
#undef LESS
