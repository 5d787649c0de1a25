/* One-hot vectors; one thread for each element.  A negative label is too large as unsigned.

   T, W, STORE  of an element
   L            type of a label */
KERNEL {
  EACH_ELEMENT {
    const uint64_t n = a.w[SIZES + 1];
    const uint64_t label = ((const L *)mg_global(a.w[0]))[e / (I)n];
    if (label >= n) *(int *)mg_global(a.w[FLAG]) = 1;
    ((T *)mg_global(a.w[1]))[e] = STORE((W)(label == e % (I)n));
  }
}
