// The pretended GPU: what memory it knows, its streams, and how an error of a kernel is remembered.
//
// Streams are threads, each with a queue, so what is not ordered by an event really happens in any
// order. GPU memory is an anonymous file (memfd) mapped into this process, which another process
// can map as well; the kernel frees it with the last of them.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <cuda.h>
#include <cuda_runtime_api.h>

#define API extern "C" __attribute__((visibility("default")))

namespace standin {

using Clock = std::chrono::steady_clock;

constexpr int kGpus = 2;
constexpr int kMultiprocessors = 132;
constexpr const char* kName = "stand-in (no GPU)";

// A moment in a stream: not yet reached, or reached at a time.
class Moment {
 public:
  void reach();
  void wait();
  bool reached();
  Clock::time_point at() const { return at_; }

 private:
  std::mutex lock_;
  std::condition_variable told_;
  bool reached_ = false;
  Clock::time_point at_;
};

class Stream {
 public:
  Stream(int priority, unsigned flags);
  void put(std::function<void()> job);
  // Like put, after a random pause of up to twice STANDIN_DELAY_MS: a copy or a kernel.
  void put_slow(std::function<void()> job);
  void synchronize();
  bool idle();
  const int priority;
  const unsigned flags;

 private:
  void run();
  std::mutex lock_;
  std::condition_variable wanted_, drained_;
  std::deque<std::function<void()>> jobs_;
  bool busy_ = false;
  std::mt19937 draw_{12345};
};

// The stream behind a handle; the default streams are one.
Stream* stream_of(const void* handle);
Stream* make_stream(int priority, unsigned flags);
void synchronize_all();

struct Range {
  size_t size;
  cudaMemoryType kind;
  bool ours;  // allocated here, not registered
  int file = -1;
  bool imported = false;
};

// What cudaPointerGetAttributes would answer.
cudaMemoryType kind_at(const void* address);
// Whether a kernel may touch all of these bytes.
bool visible(const void* address, size_t size);

// The machine's numbers of the GPUs that this process sees, as CUDA_VISIBLE_DEVICES names them; read
// once, as by the driver. Only the first can be used. A fork of a process that asked is broken.
const std::vector<int>& gpus();

// What was asked of the pretended GPU, by one thread or by all, in the order of `standin_counts`. An
// operator of torch is one, however many kernels it takes on a GPU. A wait is a call that returns
// when the GPU has got somewhere, whether it had already or not.
enum Count { kLaunches, kOperators, kToDevice, kToHost, kPageable, kWaits, kEvents, kAllocations, kCounts };
void count(Count what);

// An illegal access is met by every later call, as on a GPU.
extern std::atomic<int> broken;
// The calling thread has a context: made by the runtime when it needs one, never by the driver.
extern thread_local bool has_context;
// Ends every function of the runtime.
cudaError_t answer(int status);

}  // namespace standin
