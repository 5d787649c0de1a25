/* The index of the first maximum along an axis that later axes follow; one thread for each result.  NaN
   is larger than any number.

   T, W, LOAD  of an element */
KERNEL {
  EACH_ELEMENT {
    const I n = a.w[SIZES + 1], inner = a.w[SIZES + 2];
    const T *p = (const T *)mg_global(a.w[0]) + (e / inner * n * inner + e % inner);
    W best = LOAD(p[0]);
    I index = 0;
    for (I j = 1; j < n; j++) {
      const W v = LOAD(p[j * inner]);
      if (v > best || (v != v && best == best)) best = v, index = j;
    }
    ((int64_t *)mg_global(a.w[1]))[e] = index;
  }
}
