// The little of CUDA that gather.cu, sample.cu and pointer_chase.cu need, so that g++ compiles them
// for a machine without a GPU.
//
// Threads run one after another: no kernel has a barrier of several threads, memory that they share
// or a shuffle, and the gather's lanes stay in step (see the end of the comment in gather.cu). A load counts its place in the
// thread's program even when the lane does not want it, so loads with equal (warp, place) are one
// warp instruction, exactly as on the GPU with predicated-off lanes.

#pragma once

#include <cstdint>
#include <vector>

#define GATHER_SHIM 1
#define __device__
#define __global__
#define __forceinline__ inline

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

template <class Word> inline Word atomicMin(Word* at, Word value) {
  const Word old = *at;
  if (value < old) *at = value;
  return old;
}
template <class Word> inline Word atomicMax(Word* at, Word value) {
  const Word old = *at;
  if (value > old) *at = value;
  return old;
}

// A load past the caches; the host has nothing to ask for.
template <class Word> inline Word __ldcv(const Word* from) { return *from; }

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
