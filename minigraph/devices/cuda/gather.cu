/* Gathers: a thread moves an element of y [outer, count, columns] from x [outer, n, columns].

   T      unsigned integers of the size of an element, or vectors where rows are made of them
   L      type of an index
   WRAPS  whether indices below 0 count from the end
   PLACE  where the index of element e stands */
KERNEL {
  EACH_ELEMENT {
    const I n = a.w[SIZES + 1], count = a.w[SIZES + 2], columns = a.w[SIZES + 3];
    const L index = ((const L *)mg_global(a.w[1]))[PLACE];
    const int64_t at = WRAPS && index < 0 ? (int64_t)index + (int64_t)n : (int64_t)index;
    const bool inside = (uint64_t)at < (uint64_t)n;
    if (!inside) *(int *)mg_global(a.w[FLAG]) = 1;
    const T *x = (const T *)mg_global(a.w[0]);
    T y = {};
    if (inside) y = x[(e / columns / count * n + (I)at) * columns + e % columns];
    ((T *)mg_global(a.w[2]))[e] = y;
  }
}
