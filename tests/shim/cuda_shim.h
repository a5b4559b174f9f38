// CUDA as far as the project's kernels use it, so that g++ compiles them for a machine without a GPU;
// comes before the kernel's source.
//
// Threads run one after another: no kernel has a barrier of several threads, memory that they share
// or a shuffle, and the gather's lanes stay in step (see the end of the comment in gather.cu). With
// GATHER_SHIM defined, the gather's loads are recorded. A load counts its place in the thread's
// program even when the lane does not want it, so loads with equal (warp, place) are one warp
// instruction, exactly as on the GPU with predicated-off lanes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// Each library of a kernel has its own.
[[maybe_unused]] static thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

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
template <class Word> static Word atomicXor(Word* at, Word value) {
  const Word old = *at;
  *at ^= value;
  return old;
}
template <class Word> static Word __ldcv(const Word* from) { return *from; }
template <class Word> static Word __ldcs(const Word* from) { return *from; }
template <class Word> static void __stcs(Word* to, Word value) { *to = value; }

#ifdef GATHER_SHIM
struct LoadRecord {
  std::uint64_t address;
  std::uint32_t warp, instruction, lane, size;
};

// Where loads are recorded; null while nobody asks for them.
inline thread_local std::vector<LoadRecord>* load_records = nullptr;
inline thread_local std::uint32_t load_place = 0;

namespace gather {

template <class Word> inline Word load_if(bool wanted, const Word* from) {
  const std::uint32_t place = load_place++;
  if (!wanted) return Word{};
  if (load_records != nullptr) {
    const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
    const unsigned warps = blockDim.x * blockDim.y / 32;
    load_records->push_back({reinterpret_cast<std::uint64_t>(from),
                             blockIdx.x * warps + thread / 32, place, thread % 32,
                             static_cast<std::uint32_t>(sizeof(Word))});
  }
  return *from;
}

template <class Word> inline void store(Word* to, Word value) { *to = value; }

}  // namespace gather
#endif
