/* Gather y [outer, count, columns] from x [outer, n, columns]; one thread for each element of y.

   T               unsigned integer of the size of an element, or vector of them
   L               type of an index
   WRAPS           whether negative indices count from the end
   INDEX_POSITION  position of the index for element e */
KERNEL {
  EACH_ELEMENT {
    const I n = a.w[SIZES + 1], count = a.w[SIZES + 2], columns = a.w[SIZES + 3];
    const L index = ((const L *)mg_global(a.w[1]))[INDEX_POSITION];
    const int64_t at = WRAPS && index < 0 ? (int64_t)index + (int64_t)n : (int64_t)index;
    const bool inside = (uint64_t)at < (uint64_t)n;
    if (!inside) *(int *)mg_global(a.w[FLAG]) = 1;
    const T *x = (const T *)mg_global(a.w[0]);
    T y = {};
    if (inside) y = x[(e / columns / count * n + (I)at) * columns + e % columns];
    ((T *)mg_global(a.w[2]))[e] = y;
  }
}
