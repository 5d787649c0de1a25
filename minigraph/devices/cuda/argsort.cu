/* Places in order: a thread does an element of x [outer, n, inner], and counts those of its row
   that come before it.  NaN is larger than any number.

   T, W, LOAD  of an element
   DESCENDING  whether the largest come first */
#define LESS(p, q) (p < q || (q != q && p == p))
KERNEL {
  EACH_ELEMENT {
    const I n = a.w[SIZES + 1], inner = a.w[SIZES + 2], few = a.w[SIZES + 3];
    const I mine = e / inner % n, outer = e / inner / n;
    const T *row = (const T *)mg_global(a.w[0]) + (outer * n * inner + e % inner);
    const W p = LOAD(row[mine * inner]);
    I before = 0;
    for (I j = 0; j < n; j++) {
      const W q = LOAD(row[j * inner]);
#if DESCENDING
      const bool first = LESS(p, q), second = LESS(q, p);
#else
      const bool first = LESS(q, p), second = LESS(p, q);
#endif
      before += first || (!second && j < mine);
    }
    if (before < few)
      ((int64_t *)mg_global(a.w[1]))[(outer * few + before) * inner + e % inner] = mine;
  }
}
#undef LESS
