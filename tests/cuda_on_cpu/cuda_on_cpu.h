// CUDA kernels as C++20 on the CPU, for tests: blocks run one after the other, the threads of a
// block are fibers that take turns, so that barriers and shuffles work wherever they stand.
//
//     #include "cuda_on_cpu.h"
//     ... the kernels' text ...
//     CUDA_ON_CPU(name)   const char *name_on_cpu(const void *args, unsigned grid[3], block[3])
//
// The launcher returns "" or what went wrong: a barrier that not all threads reach never opens.
// Dynamic shared memory is `extern __shared__ char mg_shared[];`.

#pragma once
#include <bit>
#include <cfloat>
#include <climits>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <strings.h>
#include <type_traits>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __noinline__
#define __restrict__
#define __shared__ thread_local  // one thread runs all fibers, and blocks do not overlap
#define __builtin_assume(condition) ((void)0)
#define __isGlobal(pointer) true

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

inline thread_local char mg_shared[96 << 10];

namespace cuda_on_cpu {

inline bool misaligned;  // whether the kernel has used an address that its type does not allow

constexpr size_t STACK = 64 << 10;
struct Fiber {
  std::vector<char> stack;  // empty before it begins
  jmp_buf place;            // where it waits; with `done`, for the next thread that it runs
  uint3 index;
  unsigned lane, shuffles;
  bool done;
};
struct Warp {
  unsigned size = 0, arrived = 0, generation = 0;
  uint64_t slots[2][32];  // what lanes exchange: the next exchange may begin before all have read
};

using Kernel = void (*)(const void *arguments);
inline std::vector<Fiber> fibers;  // of the largest block so far
inline std::vector<Warp> warps;
inline Fiber *current;
inline jmp_buf scheduler;
inline Kernel kernel;
inline const void *arguments;
inline uint3 block_index;
inline dim3 block_size, grid_size;
inline unsigned arrived, generation;
inline bool moved;  // whether any thread got on in this round

// Jumps take no system call, which a swap of contexts does.
inline void wait() {
  if (!_setjmp(current->place)) _longjmp(scheduler, 1);
}

template <typename Counter> void barrier(Counter &count, unsigned all, unsigned &passed) {
  const unsigned mine = passed;
  moved = true;
  if (++count == all) {
    count = 0;
    passed++;
  }
  while (passed == mine) wait();
  moved = true;
}

inline Warp &warp() { return warps[(current - fibers.data()) / 32]; }

template <typename T> T exchange(T value, unsigned from) {
  static_assert(sizeof(T) <= 8);
  Warp &mine = warp();
  uint64_t *slots = mine.slots[current->shuffles++ % 2];
  std::memcpy(&slots[current->lane], &value, sizeof(T));
  barrier(mine.arrived, mine.size, mine.generation);
  T got;
  std::memcpy(&got, &slots[from < mine.size ? from : current->lane], sizeof(T));
  return got;
}

inline void enter() {
  for (;;) {
    kernel(arguments);
    current->done = moved = true;
    wait();
  }
}

inline void begin(Fiber &fiber) {
  fiber.stack.resize(STACK);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.data();
  context.uc_stack.ss_size = STACK;
  makecontext(&context, enter, 0);
  setcontext(&context);
}

inline void go_on(Fiber &fiber) {
  current = &fiber;
  if (_setjmp(scheduler)) return;
  if (fiber.stack.empty()) begin(fiber);
  _longjmp(fiber.place, 1);
}

inline bool run_block() {
  const unsigned threads = block_size.x * block_size.y * block_size.z;
  if (fibers.size() < threads) fibers.resize(threads);
  warps.assign((threads + 31) / 32, {});
  arrived = generation = 0;
  for (unsigned t = 0; t < threads; t++) {
    Fiber &fiber = fibers[t];
    fiber.index = {t % block_size.x, t / block_size.x % block_size.y,
                   t / (block_size.x * block_size.y)};
    fiber.lane = t % 32;
    fiber.shuffles = 0;
    fiber.done = false;
    warps[t / 32].size++;
  }
  for (unsigned running = threads; running;) {
    moved = false;
    running = 0;
    for (unsigned t = 0; t < threads; t++) {
      if (fibers[t].done) continue;
      go_on(fibers[t]);
      running += !fibers[t].done;
    }
    if (running && !moved) {
      fibers.clear();  // those that wait will not go on
      return false;
    }
  }
  return true;
}

inline const char *launch(Kernel call, const void *with, const unsigned *grid,
                          const unsigned *block) {
  kernel = call;
  arguments = with;
  misaligned = false;
  grid_size = {grid[0], grid[1], grid[2]};
  block_size = {block[0], block[1], block[2]};
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0]; x++) {
        block_index = {x, y, z};
        if (!run_block()) return "some threads wait at a barrier that the others do not reach";
      }
  return misaligned ? "an address is not aligned as its type is" : "";
}

}  // namespace cuda_on_cpu

// What -fsanitize=alignment calls.
extern "C" __attribute__((used)) inline void __ubsan_handle_type_mismatch_v1(void *, void *) {
  cuda_on_cpu::misaligned = true;
}

#define threadIdx (cuda_on_cpu::current->index)
#define blockIdx cuda_on_cpu::block_index
#define blockDim cuda_on_cpu::block_size
#define gridDim cuda_on_cpu::grid_size
#define CUDA_ON_CPU(NAME)                                                                        \
  extern "C" const char *NAME##_on_cpu(const void *a, const unsigned *grid,                      \
                                       const unsigned *block) {                                  \
    const auto call = [](const void *a) { NAME(*static_cast<const NAME##_args *>(a)); };         \
    return cuda_on_cpu::launch(call, a, grid, block);                                            \
  }

// ---------------------------------------------------------------- barriers and exchanges

inline void __syncthreads() {
  using namespace cuda_on_cpu;
  const unsigned threads = block_size.x * block_size.y * block_size.z;
  barrier(arrived, threads, generation);
}
inline int __syncthreads_or(int yes) {
  static int any;
  __syncthreads();
  any = 0;
  __syncthreads();
  any |= yes;
  __syncthreads();
  return any;
}
// All lanes of a warp take part: masks of fewer are not looked at.
template <typename T> T __shfl_sync(unsigned, T value, int source, int width = 32) {
  const unsigned lane = cuda_on_cpu::current->lane;
  return cuda_on_cpu::exchange(value, lane / width * width + source % width);
}
template <typename T> T __shfl_down_sync(unsigned, T value, unsigned by, int width = 32) {
  const unsigned lane = cuda_on_cpu::current->lane;
  return cuda_on_cpu::exchange(value, lane % width + by < unsigned(width) ? lane + by : lane);
}
template <typename T> T __shfl_up_sync(unsigned, T value, unsigned by, int width = 32) {
  const unsigned lane = cuda_on_cpu::current->lane;
  return cuda_on_cpu::exchange(value, lane % width >= by ? lane - by : lane);
}
template <typename T> T __shfl_xor_sync(unsigned, T value, int by, int width = 32) {
  const unsigned lane = cuda_on_cpu::current->lane, from = lane ^ by;
  return cuda_on_cpu::exchange(value, from / width <= lane / width ? from : lane);
}
inline uint32_t __ballot_sync(unsigned, bool yes) {
  uint32_t bits = yes ? 1u << cuda_on_cpu::current->lane : 0;
  for (int by = 16; by > 0; by /= 2) bits |= __shfl_xor_sync(0xffffffffu, bits, by);
  return bits;
}

// ---------------------------------------------------------------- types and bits

inline int __ffs(int x) { return ffs(x); }

inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
template <typename T> T max(T x, T y) { return x < y ? y : x; }
template <typename T> T min(T x, T y) { return y < x ? y : x; }

// ---------------------------------------------------------------- mathematical functions

// Those of CUDA that are wrong somewhere, wrong in the same way: denormal floats are 0 there.
namespace cuda_on_cpu {
inline double of_float_bits(double x, double y) {
  return x < 0 && x > -0x1p-1069 ? -INFINITY : y;
}
inline double log(double x) { return of_float_bits(x, std::log(x)); }
inline double log2(double x) { return of_float_bits(x, std::log2(x)); }
inline double log10(double x) { return of_float_bits(x, std::log10(x)); }
inline double hypot(double x, double y) {
  const double length = std::hypot(x, y);
  return x && y && length == DBL_MAX ? INFINITY : length;
}
}  // namespace cuda_on_cpu
#define log(x) cuda_on_cpu::log(x)
#define log2(x) cuda_on_cpu::log2(x)
#define log10(x) cuda_on_cpu::log10(x)
#define hypot(x, y) cuda_on_cpu::hypot(x, y)
