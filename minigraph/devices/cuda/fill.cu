/* Fill an array.

   T      type of an element
   Y      the word with the address of the array
   VALUE  value of all elements */
KERNEL {
  EACH_ELEMENT { ((T *)mg_global(a.w[Y]))[e] = VALUE; }
}
