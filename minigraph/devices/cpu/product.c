/* Tensor contractions: z[i, j] = sum over t of x[i, t] y[t, j], where j and t are indices along up to
   three axes each, for matrices and for images.  Columns of y are packed, a panel of them at a time; so
   are a few rows of x.

   The argument block: threads; whether to add to z; columns of a panel; contractions, and tasks of them
   all; batches and their axes; elements of scratch memory for each thread; distances of the bias from
   row to row and from column to column; slot and offset of x, y, z, the bias and the scratch memory; for
   each axis of batches its extent, and the distances of x, y, z and the bias; then the contractions.  All
   distances are in elements.

   T                  type of an element
   L                  elements of a vector
   R                  rows of a tile
   NV                 vectors of a row that are kept in registers
   DEPTH              products that are added up in registers, at most
   MAX_PANEL_COLUMNS  columns of a panel, at most
   ADD                the operator of the sum
   BOOL               whether elements are truth values
   BIAS               whether there is a bias */
typedef T NAME_vec __attribute__((vector_size(L * sizeof(T)), aligned(sizeof(T)), may_alias));
typedef struct {
  int64_t threads, accumulate, panel_columns, contractions, tasks, batches, axes, scratch,
          bias_row, bias_column;
  int64_t place[5][2];
} NAME_head;
typedef struct { /* sums along the same axes; its tasks are batches, panels and parts of rows */
  int64_t rows, columns[3], sums[3], x_row, x_sum[3], y_sum[3], y_column[3], z_row, z_column[3];
  int64_t x, y, z, panels, parts;
} NAME_contraction;
typedef struct { /* the operands of a contraction in a batch, and a thread's scratch memory */
  const T *x, *y, *bias;
  T *z, *panel, *packed_rows, *tile;
} NAME_operands;
#pragma clang fp contract(fast)
PRODUCTS
#pragma clang fp contract(off)
/* Set the offsets of `count` elements in two operands, from the `first` on. */
static void NAME_offsets(const int64_t *extent, int64_t first, int64_t count, const int64_t *p_step,
                         const int64_t *q_step, int64_t *p, int64_t *q) {
  if (!count) return;
  int64_t i = first / extent[2] / extent[1], j = first / extent[2] % extent[1], k = first % extent[2];
  for (int64_t n = 0; n < count; n++) {
    p[n] = i * p_step[0] + j * p_step[1] + k * p_step[2];
    q[n] = i * q_step[0] + j * q_step[1] + k * q_step[2];
    if (++k == extent[2]) k = 0, j++;
    if (j == extent[1]) j = 0, i++;
  }
}
/* Whether `count` elements are contiguous. */
MG_INLINE int NAME_is_contiguous(const int64_t *at, int64_t count) {
  int64_t gaps = 0;
  for (int64_t l = 0; l < count; l++) gaps |= at[l] - at[0] - l;
  return !gaps;
}
/* Pack columns of y: a vector of them for each sum.

   GROUP rows that are contiguous are read side by side, so that the processor fetches each of them ahead. */
static void NAME_pack_columns(const T *y, const int64_t *down, int64_t sums, const int64_t *across,
                              int64_t columns, T *panel) {
  const int64_t padded = (columns + NV * L - 1) / (NV * L) * (NV * L);
  const int64_t group = NAME_is_contiguous(across, columns < L ? columns : L) ? GROUP : sums;
  for (int64_t first = 0; first < sums; first += group) {
    const int64_t last = sums - first < group ? sums : first + group;
    T *to = panel;
    for (int64_t c = 0; c < padded; c += L, to += sums * L) {
      const int64_t lanes = columns - c < L ? columns - c : L;
      if (lanes == L && NAME_is_contiguous(across + c, L)) {
        const T *from = y + across[c];
        for (int64_t t = first; t < last; t++) *(vec *)(to + t * L) = *(const vec *)(from + down[t]);
        continue;
      }
      if (lanes < L) memset(to + first * L, 0, (last - first) * L * sizeof(T));
      for (int64_t l = 0; l < lanes; l++) {
        const T *from = y + across[c + l];
        for (int64_t t = first; t < last; t++) to[t * L + l] = from[down[t]];
      }
    }
  }
}
/* Pack rows of x, of DEPTH elements each. */
static void NAME_pack_rows(const T *x, int64_t step, const int64_t *across, int64_t sums, int64_t rows,
                           T *to) {
  const int copies = !BOOL && sums && NAME_is_contiguous(across, sums);
  if (rows < R) memset(to, 0, DEPTH * R * sizeof(T));
  for (int64_t r = 0; r < rows; r++, x += step, to += DEPTH)
    if (copies) memcpy(to, x + across[0], sums * sizeof(T));
    else
      for (int64_t t = 0; t < sums; t++) to[t] = BOOL ? -(x[across[t]] != 0) : x[across[t]];
}
/* Write a tile, or add it to the result. */
static void NAME_write_tile(const NAME_head *h, const NAME_contraction *p, const NAME_operands *o,
                            int64_t row, int64_t rows, int64_t column, int64_t columns,
                            const int64_t *at, int accumulate) {
  const int64_t tile_stride = h->panel_columns + L;
  T *const z = o->z + row * p->z_row;
  for (int64_t r = 0; r < rows && (BIAS || BOOL); r++)
    for (int64_t c = 0; c < columns; c++) {
      const T *bias = o->bias + (row + r) * h->bias_row + (column + c) * h->bias_column;
      T *tile = o->tile + r * tile_stride + c;
      if (BOOL) *tile = *tile != 0;
      if (BIAS && !accumulate) *tile = *tile ADD *bias;
    }
  for (int64_t c = 0; c < columns; c += L) {
    const int is_vector = columns - c >= L && NAME_is_contiguous(at + c, L);
    const T *tile = o->tile + c;
    for (int64_t r = 0; r < rows; r++, tile += tile_stride) {
      if (is_vector) {
        vec *to = (vec *)(z + r * p->z_row + at[c]), v = *(const vec *)tile;
        if (accumulate) v = v ADD *to;
        *to = v;
      } else
        for (int64_t l = 0; l < L && c + l < columns; l++) {
          T *to = z + r * p->z_row + at[c + l];
          *to = accumulate ? tile[l] ADD *to : tile[l];
        }
    }
  }
}
/* Compute the rows `begin` to `end` of a panel of columns. */
static void NAME_task(const NAME_head *h, const NAME_contraction *p, const NAME_operands *o, int64_t begin,
                      int64_t end, int64_t column, int64_t columns) {
  int64_t x_at[DEPTH], y_at[DEPTH], across[MAX_PANEL_COLUMNS], z_at[MAX_PANEL_COLUMNS];
  const int64_t sums = p->sums[0] * p->sums[1] * p->sums[2], tile_stride = h->panel_columns + L;
  NAME_offsets(p->columns, column, columns, p->y_column, p->z_column, across, z_at);
  for (int64_t t = 0; t < sums || !t; t += DEPTH) {
    const int64_t count = sums - t < DEPTH ? sums - t : DEPTH;
    NAME_offsets(p->sums, t, count, p->x_sum, p->y_sum, x_at, y_at);
    NAME_pack_columns(o->y, y_at, count, across, columns, o->panel);
    for (int64_t row = begin; row < end; row += R) {
      const int64_t rows = end - row < R ? end - row : R;
      NAME_pack_rows(o->x + row * p->x_row, p->x_row, x_at, count, rows, o->packed_rows);
      for (int64_t c = 0; c < columns; c += NV * L) {
        NAME_products(count, count, o->packed_rows, (const vec *)(o->panel + c * count),
                      (vec *)(o->tile + c), tile_stride / L, 0);
      }
      NAME_write_tile(h, p, o, row, rows, column, columns, z_at, h->accumulate || t > 0);
    }
  }
}
int NAME(const int64_t *a, char **slots) {
  const NAME_head *h = (const NAME_head *)a;
  const int64_t *axes = (const int64_t *)(h + 1);
  const NAME_contraction *contractions = (const NAME_contraction *)(axes + 5 * h->axes);
  char *place[5];
  for (int k = 0; k < 5; k++) place[k] = slots[h->place[k][0]] + h->place[k][1];
  #pragma omp parallel num_threads(h->threads) if (h->threads > 1)
  {
    NAME_operands o;
    o.panel = (T *)place[4] + omp_get_thread_num() * h->scratch;
    o.packed_rows = o.panel + DEPTH * h->panel_columns;
    o.tile = o.packed_rows + DEPTH * R;
    #pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < h->tasks; task++) {
      const NAME_contraction *p = contractions;
      int64_t i = task;
      for (; i >= h->batches * p->panels * p->parts; p++) i -= h->batches * p->panels * p->parts;
      int64_t batch = i / (p->panels * p->parts), at[4] = {p->x, p->y, p->z, 0};
      for (const int64_t *axis = axes + 5 * h->axes; (axis -= 5) >= axes; batch /= axis[0])
        for (int k = 0; k < 4; k++) at[k] += batch % axis[0] * axis[k + 1];
      o.x = (const T *)place[0] + at[0], o.y = (const T *)place[1] + at[1];
      o.z = (T *)place[2] + at[2], o.bias = (const T *)place[3] + at[3];
      const int64_t part = i % p->parts, tiles = (p->rows + R - 1) / R;
      const int64_t begin = tiles * part / p->parts * R, end = tiles * (part + 1) / p->parts * R;
      const int64_t column = i / p->parts % p->panels * h->panel_columns;
      const int64_t columns = p->columns[0] * p->columns[1] * p->columns[2] - column;
      NAME_task(h, p, &o, begin, end < p->rows ? end : p->rows, column,
                columns < h->panel_columns ? columns : h->panel_columns);
    }
  }
  return 0;
}
