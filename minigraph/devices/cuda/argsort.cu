/* The indices that sort an axis of x [outer, n, inner]; each thread counts the elements that precede
   its own. NaN is larger than any number.

   T, W, LOAD  of an element
   DESCENDING  whether the largest come first */
#define LESS(p, q) (p < q || (q != q && p == p))
KERNEL {
  EACH_ELEMENT {
    const I n = a.w[SIZES + 1], inner = a.w[SIZES + 2], kept = a.w[SIZES + 3];
    const I own_index = e / inner % n, outer = e / inner / n;
    const T *row = (const T *)mg_global(a.w[0]) + (outer * n * inner + e % inner);
    const W p = LOAD(row[own_index * inner]);
    I rank = 0;
    for (I j = 0; j < n; j++) {
      const W q = LOAD(row[j * inner]);
#if DESCENDING
      const bool precedes = LESS(p, q), follows = LESS(q, p);
#else
      const bool precedes = LESS(q, p), follows = LESS(p, q);
#endif
      rank += precedes || (!follows && j < own_index);
    }
    if (rank < kept)
      ((int64_t *)mg_global(a.w[1]))[(outer * kept + rank) * inner + e % inner] = own_index;
  }
}
#undef LESS
