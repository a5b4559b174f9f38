// The most that multiprocessors read from one contiguous piece of memory: the roof for a gather.
//
// Each thread keeps LOADS independent 16 B loads in flight, and neighbouring threads read
// neighbouring words. `count` is in words of 16 B. The checksum is written only where `checksum` is
// given: the compiler cannot know that it is not, so no load can be left out.

#ifndef LOADS
#define LOADS 4
#endif

extern "C" __global__ void __launch_bounds__(1024)
    read_kernel(const uint4* from, long long count, unsigned int* checksum) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  unsigned int sum = 0;
#pragma unroll 1
  for (; i + (LOADS - 1) * step < count; i += LOADS * step) {
    uint4 words[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) words[k] = __ldcs(from + i + k * step);
#pragma unroll
    for (int k = 0; k < LOADS; ++k) sum ^= words[k].x ^ words[k].y ^ words[k].z ^ words[k].w;
  }
  for (; i < count; i += step) {
    const uint4 word = __ldcs(from + i);
    sum ^= word.x ^ word.y ^ word.z ^ word.w;
  }
  if (checksum != nullptr) atomicXor(checksum, sum);
}
