/* What both texts of Winograd's algorithm begin with; `winograd.py` says how it works.

   L      lanes, which are channels of a block
   TILE   pixels that a tile of results has on each side
   R      tiles, or lanes, whose sums a product keeps in registers
   NV     blocks of outputs whose sums it keeps
   SIDE   TILE + 2, the pixels that a tile is made of, on each side
   POINTS SIDE * SIDE
   TAPS   of the weights: 9 */
#ifndef MG_FAST
/* Products may be fused with sums here, as they are in any library's convolution. */
#if defined(__clang__)
#define MG_FAST static
#else
#define MG_FAST static __attribute__((optimize("fp-contract=fast")))
#endif
#define MG_ALIGNED __attribute__((aligned(64)))
/* The share that thread `me` of `team` has of `count` indices; all of them wait for each other. */
#define MG_SHARE(i, count) int64_t i = me * (count) / team; i < (me + 1) * (count) / team; i++
#define MG_WAIT if (team > 1) { _Pragma("omp barrier") }
#endif
#pragma clang fp contract(fast)
typedef float NAME_vec __attribute__((vector_size(L * 4), aligned(4), may_alias));
typedef struct { /* [n, blocks, h, w, L], and how far outside the first tile begins */
  vec *at;
  int64_t blocks, h, w, top, left;
} NAME_images;
typedef struct { /* of an image; room: for how many there is memory at once */
  int64_t down, across, room;
} NAME_tiles;
MG_FAST int NAME_finite(vec zeros) { /* which zero times a number is, if it is finite */
  float total = 0;
  for (int l = 0; l < L; l++) total += zeros[l];
  return total == 0;
}
