// Streams and events, also those that two processes share.

#include "gpu.h"

#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

namespace standin {

void Moment::reach() {
  std::lock_guard<std::mutex> hold(lock_);
  at_ = Clock::now();
  reached_ = true;
  told_.notify_all();
}

void Moment::wait() {
  std::unique_lock<std::mutex> hold(lock_);
  told_.wait(hold, [this] { return reached_; });
}

bool Moment::reached() {
  std::lock_guard<std::mutex> hold(lock_);
  return reached_;
}

Stream::Stream(int wanted_priority, unsigned wanted_flags)
    : priority(wanted_priority), flags(wanted_flags) {
  std::thread([this] { run(); }).detach();  // lives as long as the process, like its handle
}

void Stream::run() {
  pthread_setname_np(pthread_self(), "standin-stream");  // as CUDA's: it is no thread of torch's pool
  for (;;) {
    std::unique_lock<std::mutex> hold(lock_);
    wanted_.wait(hold, [this] { return !jobs_.empty(); });
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    hold.unlock();
    job();
    job = nullptr;
    hold.lock();
    busy_ = false;
    if (jobs_.empty()) drained_.notify_all();
  }
}

void Stream::put(std::function<void()> job) {
  std::lock_guard<std::mutex> hold(lock_);
  jobs_.push_back(std::move(job));
  wanted_.notify_one();
}

void Stream::put_slow(std::function<void()> job) {
  static const char* given = std::getenv("STANDIN_DELAY_MS");
  static const double delay_ms = given != nullptr ? std::atof(given) : 0.0;
  put([this, job = std::move(job)] {
    if (delay_ms > 0) {
      std::uniform_real_distribution<double> pause(0, 2 * delay_ms);
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(pause(draw_)));
    }
    job();
  });
}

void Stream::synchronize() {
  std::unique_lock<std::mutex> hold(lock_);
  drained_.wait(hold, [this] { return jobs_.empty() && !busy_; });
}

bool Stream::idle() {
  std::lock_guard<std::mutex> hold(lock_);
  return jobs_.empty() && !busy_;
}

static thread_local long counted_here[kCounts];
static std::atomic<long> counted_everywhere[kCounts];

void count(Count what) {
  ++counted_here[what];
  ++counted_everywhere[what];
}

namespace {

std::mutex streams_lock;
// Never destroyed: threads and torch's own teardown use them until the process is gone.
std::vector<Stream*>& streams() {
  static auto* all = new std::vector<Stream*>;
  return *all;
}

// What two processes know of an event: how often it was recorded, and how far that is done.
struct Shared {
  std::atomic<std::uint64_t> recorded, done;
};

struct Event {
  explicit Event(unsigned given) : flags(given) {
    if ((flags & cudaEventInterprocess) != 0) share(memfd_create("standin-event", MFD_CLOEXEC));
  }
  void share(int opened) {
    file = opened;
    if (ftruncate(file, sizeof(Shared)) != 0) std::abort();
    void* at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) std::abort();
    shared = static_cast<Shared*>(at);
  }
  std::shared_ptr<Moment> latest() {
    std::lock_guard<std::mutex> hold(lock);
    return last;
  }
  const unsigned flags;
  int file = -1;
  Shared* shared = nullptr;
  std::mutex lock;
  std::shared_ptr<Moment> last;
};

Event* event_of(cudaEvent_t handle) { return reinterpret_cast<Event*>(handle); }

void await(Shared* shared, std::uint64_t turn) {
  while (shared->done.load() < turn) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

struct EventHandle {
  int process, file;
};

}  // namespace

Stream* make_stream(int priority, unsigned flags) {
  auto* made = new Stream(priority, flags);
  std::lock_guard<std::mutex> hold(streams_lock);
  streams().push_back(made);
  return made;
}

Stream* stream_of(const void* handle) {
  static Stream* const main = make_stream(0, 0);
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  return number <= 2 ? main : reinterpret_cast<Stream*>(const_cast<void*>(handle));
}

void synchronize_all() {
  std::vector<Stream*> all;
  {
    std::lock_guard<std::mutex> hold(streams_lock);
    all = streams();
  }
  for (Stream* stream : all) stream->synchronize();
}

}  // namespace standin

using namespace standin;

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned flags, int priority) {
  has_context = true;
  *made = reinterpret_cast<cudaStream_t>(make_stream(priority, flags));
  return answer(0);
}
API cudaError_t cudaStreamCreate(cudaStream_t* made) {
  return cudaStreamCreateWithPriority(made, 0, 0);
}
API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  stream_of(stream)->synchronize();
  return answer(0);
}
API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  count(kWaits);
  stream_of(stream)->synchronize();
  return answer(0);
}
API cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return stream_of(stream)->idle() ? answer(0) : cudaErrorNotReady;
}
API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = stream_of(stream)->priority;
  return answer(0);
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return answer(0);
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return answer(0);
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                         unsigned long long*, cudaGraph_t*, const cudaGraphNode_t**,
                                         const cudaGraphEdgeData**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  return answer(0);
}
API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return answer(0); }
API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t work, void* of) {
  stream_of(stream)->put([=] { work(of); });
  return answer(0);
}
API cudaError_t cudaDeviceSynchronize() {
  has_context = true;
  count(kWaits);
  synchronize_all();
  return answer(0);
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned flags) {
  count(kEvents);
  has_context = true;
  *made = reinterpret_cast<cudaEvent_t>(new Event(flags));
  return answer(0);
}
API cudaError_t cudaEventCreate(cudaEvent_t* made) { return cudaEventCreateWithFlags(made, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  if (event_of(handle)->shared == nullptr) delete event_of(handle);  // a job may still await it
  return answer(0);
}
API cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  Event* event = event_of(handle);
  auto moment = std::make_shared<Moment>();
  // Until it is queued: another thread that waits for it on this stream would be queued before.
  std::lock_guard<std::mutex> hold(event->lock);
  event->last = moment;
  Shared* shared = event->shared;
  const std::uint64_t turn = shared != nullptr ? shared->recorded.fetch_add(1) + 1 : 0;
  stream_of(stream)->put([=] {
    if (shared != nullptr) shared->done.store(turn);
    moment->reach();
  });
  return answer(0);
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
API cudaError_t cudaEventQuery(cudaEvent_t handle) {
  Event* event = event_of(handle);
  if (event->shared != nullptr) {
    return event->shared->done >= event->shared->recorded ? answer(0) : cudaErrorNotReady;
  }
  auto moment = event->latest();
  return moment == nullptr || moment->reached() ? answer(0) : cudaErrorNotReady;
}
API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  Event* event = event_of(handle);
  if (event->shared != nullptr) {
    count(kWaits);
    await(event->shared, event->shared->recorded);
  } else if (auto moment = event->latest()) {
    count(kWaits);
    moment->wait();
  }
  return answer(0);
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned) {
  Event* event = event_of(handle);
  if (Shared* shared = event->shared) {
    const std::uint64_t turn = shared->recorded;
    stream_of(stream)->put([=] { await(shared, turn); });
  } else if (auto moment = event->latest()) {
    stream_of(stream)->put([moment] { moment->wait(); });
  }
  return answer(0);
}
API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  auto begin = event_of(from)->latest(), end = event_of(to)->latest();
  const unsigned flags = event_of(from)->flags | event_of(to)->flags;
  if (begin == nullptr || end == nullptr || (flags & cudaEventDisableTiming) != 0) {
    return answer(cudaErrorInvalidResourceHandle);
  }
  if (!begin->reached() || !end->reached()) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(end->at() - begin->at()).count();
  return answer(0);
}
API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  if (event_of(event)->shared == nullptr) return answer(cudaErrorInvalidResourceHandle);
  const EventHandle made{getpid(), event_of(event)->file};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &made, sizeof made);
  return answer(0);
}
API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  EventHandle from;
  std::memcpy(&from, &handle, sizeof from);
  const std::string path =
      "/proc/" + std::to_string(from.process) + "/fd/" + std::to_string(from.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return answer(cudaErrorInvalidResourceHandle);
  auto* opened = new Event(cudaEventDisableTiming);
  opened->share(file);
  *event = reinterpret_cast<cudaEvent_t>(opened);
  return answer(0);
}

// torch.cuda._sleep, whose kernel does not run here.
API void standin_sleep(cudaStream_t stream, double ms) {
  stream_of(stream)->put(
      [=] { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms)); });
}

// What this thread has counted, or all have; a number for each of `Count`.
API void standin_counts(long* out, int everywhere) {
  for (int i = 0; i < kCounts; ++i) {
    out[i] = everywhere != 0 ? counted_everywhere[i].load() : counted_here[i];
  }
}
// An operator of torch that the CPU is about to do in a kernel's place, when the stream is empty.
API void standin_operator(cudaStream_t stream) {
  count(kOperators);
  stream_of(stream)->synchronize();
}
