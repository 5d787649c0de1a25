/* Scatters: a thread does an element of the result [outer, n, columns].  It looks for itself among
   the indices [outer, count, columns], and adds what they bring, or takes the last of it.

   T, W, S, LOAD, STORE  of an element
   L                     type of an index
   WRAPS                 whether indices below 0 count from the end
   ADDS                  whether elements are added to 0, rather than put into a copy of x */
KERNEL {
  EACH_ELEMENT {
    const I n = a.w[SIZES + 1], count = a.w[SIZES + 2], columns = a.w[SIZES + 3];
    const int64_t mine = e / columns % n;
    const I begin = e / columns / n * count * columns + e % columns;
    const L *index = (const L *)mg_global(a.w[1]);
#if ADDS
    S sum = 0;
#else
    T value = ((const T *)mg_global(a.w[0]))[e];
#endif
    for (I i = 0; i < count; i++) {
      const L given = index[begin + i * columns];
      const int64_t at = WRAPS && given < 0 ? (int64_t)given + (int64_t)n : (int64_t)given;
      if ((uint64_t)at >= (uint64_t)n) *(int *)mg_global(a.w[FLAG]) = 1;
#if ADDS
      if (at == mine) sum += LOAD(((const T *)mg_global(a.w[0]))[begin + i * columns]);
#else
      if (at == mine) value = ((const T *)mg_global(a.w[2]))[begin + i * columns];
#endif
    }
#if ADDS
    ((T *)mg_global(a.w[2]))[e] = STORE((W)sum);
#else
    ((T *)mg_global(a.w[3]))[e] = value;
#endif
  }
}
