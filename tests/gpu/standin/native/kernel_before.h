// CUDA as far as the project's kernels use it, for g++; comes before the kernel's source.

#pragma once

#include <cstdint>
#include <cstddef>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(threads)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct Three {
  unsigned x = 1, y = 1, z = 1;
};
static thread_local Three threadIdx, blockIdx, blockDim, gridDim;

// A kernel runs on one thread; two kernels never share what they do this to.
template <class Word> static Word atomicMin(Word* at, Word value) {
  const Word old = *at;
  if (value < old) *at = value;
  return old;
}
template <class Word> static Word atomicMax(Word* at, Word value) {
  const Word old = *at;
  if (value > old) *at = value;
  return old;
}
template <class Word> static Word atomicAdd(Word* at, Word value) {
  const Word old = *at;
  *at += value;
  return old;
}
static unsigned atomicXor(unsigned* at, unsigned value) {
  const unsigned old = *at;
  *at ^= value;
  return old;
}
template <class Word> static Word __ldcv(const Word* from) { return *from; }
template <class Word> static Word __ldcs(const Word* from) { return *from; }
template <class Word> static void __stcs(Word* to, Word value) { *to = value; }
