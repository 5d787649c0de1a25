/* Return the indices of the first `count` elements of each row, in stable ascending or descending
   order.

   Elements become unsigned keys of the same order, paired with their indices.  A short row is sorted by
   insertion, a longer one by LSD radix sort.  With USE_HEAP, a heap holds the wanted elements, with the
   last one on top.

   The argument block: threads, outer, n, inner, count, bytes of scratch for a thread, then slot and
   offset of x [outer, n, inner], the result [outer, count, inner] and the scratch memory.

   T           type of an element: IS_BOOL, IS_FLOAT or IS_SIGNED
   K           unsigned type of the same size
   DESCENDING  whether the largest element is first
   USE_HEAP    whether few elements of a long row are wanted */
typedef struct {
  K key;
  uint32_t index;
} NAME_pair;

static inline K NAME_key(T v) {
  const K sign = (K)((K)1 << (8 * sizeof(K) - 1));
  K key;
#if IS_BOOL
  (void)sign;
  key = v != 0;
#else
  memcpy(&key, &v, sizeof key);
#if IS_FLOAT
  if (v != v)
    key = (K)~(K)0;
  else if (key == sign) /* -0 */
    key = sign;
  else
    key = key & sign ? (K)~key : key | sign;
#elif IS_SIGNED
  key ^= sign;
#else
  (void)sign;
#endif
#endif
  return DESCENDING ? (K)~key : key;
}

static inline int NAME_less(NAME_pair p, NAME_pair q) {
  return p.key < q.key || (p.key == q.key && p.index < q.index);
}

/* Sort n pairs at p, with q as scratch memory; return p or q, where the result is. */
static NAME_pair *NAME_sort(NAME_pair *p, NAME_pair *q, int64_t n) {
  if (n <= 64) {
    for (int64_t i = 1; i < n; i++) {
      const NAME_pair pair = p[i];
      int64_t j = i;
      for (; j > 0 && p[j - 1].key > pair.key; j--) p[j] = p[j - 1];
      p[j] = pair;
    }
    return p;
  }
  uint32_t counts[sizeof(K)][256];
  memset(counts, 0, sizeof counts);
  for (int64_t i = 0; i < n; i++)
    for (size_t d = 0; d < sizeof(K); d++) counts[d][p[i].key >> (8 * d) & 255]++;
  for (size_t d = 0; d < sizeof(K); d++) {
    uint32_t *offset = counts[d], sum = 0;
    if (offset[p[0].key >> (8 * d) & 255] == n) continue; /* this byte is the same in all */
    for (int v = 0; v < 256; v++) {
      const uint32_t byte_count = offset[v];
      offset[v] = sum;
      sum += byte_count;
    }
    for (int64_t i = 0; i < n; i++) q[offset[p[i].key >> (8 * d) & 255]++] = p[i];
    NAME_pair *swapped = p;
    p = q, q = swapped;
  }
  return p;
}

/* Sift a pair down from i in a max-heap of n pairs. */
static void NAME_sift(NAME_pair *heap, int64_t i, int64_t n, NAME_pair pair) {
  for (int64_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && NAME_less(heap[child], heap[child + 1])) child++;
    if (!NAME_less(pair, heap[child])) break;
    heap[i] = heap[child];
  }
  heap[i] = pair;
}

/* Set p to the first `count` of n elements, sorted. */
static void NAME_select(const T *x, int64_t n, int64_t inner, int64_t count, NAME_pair *p) {
  for (int64_t i = 0; i < count; i++) p[i] = (NAME_pair){NAME_key(x[i * inner]), (uint32_t)i};
  for (int64_t i = count / 2 - 1; i >= 0; i--) NAME_sift(p, i, count, p[i]);
  K top = p[0].key;
  for (int64_t begin = count; begin < n; begin += 64) { /* most blocks have no candidate */
    const int64_t end = n - begin < 64 ? n : begin + 64;
    int any = 0;
    for (int64_t i = begin; i < end; i++) any |= NAME_key(x[i * inner]) < top;
    for (int64_t i = begin; any && i < end; i++) {
      const K key = NAME_key(x[i * inner]);
      if (key < top) {
        NAME_sift(p, 0, count, (NAME_pair){key, (uint32_t)i});
        top = p[0].key;
      }
    }
  }
  for (int64_t left = count - 1; left > 0; left--) {
    const NAME_pair last = p[0];
    NAME_sift(p, 0, left, p[left]);
    p[left] = last;
  }
}

int NAME(const int64_t *a, char **slots) {
  const int64_t threads = a[0], outer = a[1], n = a[2], inner = a[3], count = a[4];
  const T *x = (const T *)(slots[a[6]] + a[7]);
  int64_t *y = (int64_t *)(slots[a[8]] + a[9]);
  char *scratch = slots[a[10]] + a[11];
  const int64_t rows = outer * inner;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t t = 0; t < threads; t++) {
    NAME_pair *pairs = (NAME_pair *)(scratch + t * a[5]);
    for (int64_t row = t * rows / threads; row < (t + 1) * rows / threads; row++) {
      const T *from = x + row / inner * n * inner + row % inner;
      NAME_pair *p = pairs;
      if (USE_HEAP)
        NAME_select(from, n, inner, count, p);
      else {
        for (int64_t i = 0; i < n; i++)
          p[i] = (NAME_pair){NAME_key(from[i * inner]), (uint32_t)i};
        p = NAME_sort(p, pairs + n, n);
      }
      int64_t *to = y + row / inner * count * inner + row % inner;
      for (int64_t i = 0; i < count; i++) to[i * inner] = p[i].index;
    }
  }
  return 0;
}
