/* T      type of an element
   Y      the word with the address of the result
   VALUE  of all elements */
KERNEL {
  EACH_ELEMENT { ((T *)mg_global(a.w[Y]))[e] = VALUE; }
}
