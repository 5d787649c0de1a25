/* The first of the largest along an axis that later ones follow: a thread does what belongs to one
   place of those.

   T, W, LOAD  of an element */
KERNEL {
  EACH_ELEMENT {
    const I n = a.w[SIZES + 1], inner = a.w[SIZES + 2];
    const T *p = (const T *)mg_global(a.w[0]) + (e / inner * n * inner + e % inner);
    W best = LOAD(p[0]);
    I at = 0;
    for (I j = 1; j < n; j++) {
      const W v = LOAD(p[j * inner]);
      if (v > best || (v != v && best == best)) best = v, at = j;
    }
    ((int64_t *)mg_global(a.w[1]))[e] = at;
  }
}
