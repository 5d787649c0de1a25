/* Scatter or scatter-add to a result [outer, n, columns]; one thread for each element of it searches
   the indices [outer, count, columns] for its own, and adds the values there, or takes the last one.

   T, W, S, LOAD, STORE  of an element
   L                     type of an index
   WRAPS                 whether negative indices count from the end
   ADDS                  whether values are added, rather than stored
   STARTS                whether that begins with x, rather than 0 */
KERNEL {
  EACH_ELEMENT {
    const I n = a.w[SIZES + 1], count = a.w[SIZES + 2], columns = a.w[SIZES + 3];
    const int64_t own_index = e / columns % n;
    const I begin = e / columns / n * count * columns + e % columns;
    const L *index = (const L *)mg_global(a.w[1]);
#if ADDS
    S sum = STARTS ? LOAD(((const T *)mg_global(a.w[2]))[e]) : 0;
#else
    T value = ((const T *)mg_global(a.w[0]))[e];
#endif
    for (I i = 0; i < count; i++) {
      const L index_value = index[begin + i * columns];
      const int64_t resolved =
          WRAPS && index_value < 0 ? (int64_t)index_value + (int64_t)n : (int64_t)index_value;
      if ((uint64_t)resolved >= (uint64_t)n) *(int *)mg_global(a.w[FLAG]) = 1;
#if ADDS
      if (resolved == own_index) sum += LOAD(((const T *)mg_global(a.w[0]))[begin + i * columns]);
#else
      if (resolved == own_index) value = ((const T *)mg_global(a.w[2]))[begin + i * columns];
#endif
    }
#if ADDS
    ((T *)mg_global(a.w[2 + STARTS]))[e] = STORE((W)sum);
#else
    ((T *)mg_global(a.w[3]))[e] = value;
#endif
  }
}
