// Memory: the GPU's own, page-locked, managed; registration; copies; sharing with a process.

#include "gpu.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace standin {

namespace {

constexpr std::uintptr_t kPage = 4096;

std::mutex ranges_lock;
size_t allocated = 0;

std::map<std::uintptr_t, Range>& ranges() {
  static auto* all = new std::map<std::uintptr_t, Range>;
  return *all;
}

size_t capacity() {
  static const char* given = std::getenv("STANDIN_GPU_GIB");
  static const double gib = given != nullptr ? std::atof(given) : 6.0;
  return static_cast<size_t>(gib * (1 << 30));
}

// The range that holds an address, or end; the caller holds the lock.
std::map<std::uintptr_t, Range>::iterator range_of(std::uintptr_t address) {
  auto after = ranges().upper_bound(address);
  if (after == ranges().begin()) return ranges().end();
  auto found = std::prev(after);
  return address < found->first + found->second.size ? found : ranges().end();
}

void* map(size_t size, int file) {
  const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, file, 0);
  return at == MAP_FAILED ? nullptr : at;
}

void keep(void* at, const Range& range) {
  std::lock_guard<std::mutex> hold(ranges_lock);
  ranges()[reinterpret_cast<std::uintptr_t>(at)] = range;
}

// What was asked of managed memory, a line each, until it is read; and the calls that are to fail.
std::mutex told_lock;
std::string told;
std::map<std::string, int>& faults() {
  static auto* all = new std::map<std::string, int>;
  return *all;
}

void tell(const std::string& line) {
  std::lock_guard<std::mutex> hold(told_lock);
  told += line + "\n";
}

int fault_of(const char* call) {
  std::lock_guard<std::mutex> hold(told_lock);
  auto found = faults().find(call);
  return found == faults().end() ? 0 : found->second;
}

// Bytes of whole pages that are in memory.
size_t present(std::uintptr_t at, size_t size) {
  std::vector<unsigned char> pages((size + kPage - 1) / kPage);
  mincore(reinterpret_cast<void*>(at), size, pages.data());
  return kPage * std::count_if(pages.begin(), pages.end(), [](auto one) { return one & 1; });
}

const char* word_of(cudaMemLocation place) {
  return place.type == cudaMemLocationTypeHost ? "host" : "device";
}

int allocate_on_host(void** at, size_t size, cudaMemoryType kind) {
  has_context = true;
  *at = map(size, -1);
  if (*at == nullptr) return cudaErrorMemoryAllocation;
  keep(*at, {size, kind, true});
  return 0;
}

int release(void* at) {
  has_context = true;
  if (at == nullptr) return 0;
  synchronize_all();
  std::lock_guard<std::mutex> hold(ranges_lock);
  auto found = ranges().find(reinterpret_cast<std::uintptr_t>(at));
  if (found == ranges().end() || !found->second.ours) return cudaErrorInvalidValue;
  const Range range = found->second;
  ranges().erase(found);
  munmap(at, range.size);
  if (range.file >= 0) close(range.file);
  if (range.kind == cudaMemoryTypeDevice && !range.imported) allocated -= range.size;
  if (range.kind == cudaMemoryTypeManaged) tell("free " + std::to_string(range.size));
  return 0;
}

struct MemoryHandle {
  int process, file;
  size_t size;
};

// Bytes that copies have carried over the pretended link, to the host and to the device. Every copy
// of this process counts, in pieces, so that who polls sees it on its way.
constexpr size_t kPiece = 1 << 20;
std::atomic<std::uint64_t> carried[2];

void copy_over_link(void* to, const void* from, size_t size, int direction) {
  for (size_t done = 0; done < size; done += kPiece) {
    const size_t piece = std::min(kPiece, size - done);
    std::memcpy(static_cast<char*>(to) + done, static_cast<const char*>(from) + done, piece);
    if (direction >= 0) carried[direction] += piece;
  }
}

}  // namespace

cudaMemoryType kind_at(const void* address) {
  std::lock_guard<std::mutex> hold(ranges_lock);
  auto found = range_of(reinterpret_cast<std::uintptr_t>(address));
  return found == ranges().end() ? cudaMemoryTypeUnregistered : found->second.kind;
}

bool visible(const void* address, size_t size) {
  auto at = reinterpret_cast<std::uintptr_t>(address);
  const auto end = at + size;
  std::lock_guard<std::mutex> hold(ranges_lock);
  while (at < end) {
    auto found = range_of(at);
    if (found == ranges().end()) return false;
    at = found->first + found->second.size;
  }
  return true;
}

}  // namespace standin

using namespace standin;

// Asked by the stub of NVML for its counters: 0 for bytes to the host, 1 for bytes to the device.
API double standin_link_bytes(int to_device) { return static_cast<double>(carried[to_device]); }

// What was asked of managed memory since this was last called; at most `room` characters.
API void standin_managed(char* out, size_t room) {
  std::lock_guard<std::mutex> hold(told_lock);
  std::snprintf(out, room, "%s", told.c_str());
  told.clear();
}
// From now on a call of managed memory answers so; 0: it works again.
API void standin_fault(const char* call, int status) {
  std::lock_guard<std::mutex> hold(told_lock);
  faults()[call] = status;
}

API cudaError_t cudaMalloc(void** at, size_t size) {
  has_context = true;
  count(kAllocations);
  *at = nullptr;
  if (size == 0) return answer(0);
  {
    std::lock_guard<std::mutex> hold(ranges_lock);
    if (allocated + size > capacity()) return answer(cudaErrorMemoryAllocation);
    allocated += size;
  }
  const int file = memfd_create("standin-gpu", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, size) != 0 || (*at = map(size, file)) == nullptr) {
    return answer(cudaErrorMemoryAllocation);
  }
  keep(*at, {size, cudaMemoryTypeDevice, true, file});
  return answer(0);
}
API cudaError_t cudaFree(void* at) { return answer(release(at)); }
API cudaError_t cudaFreeHost(void* at) { return answer(release(at)); }
API cudaError_t cudaHostAlloc(void** at, size_t size, unsigned) {
  count(kAllocations);
  return answer(allocate_on_host(at, size, cudaMemoryTypeHost));
}
API cudaError_t cudaMallocManaged(void** at, size_t size, unsigned) {
  if (const int fault = fault_of(__func__)) return answer(fault);
  tell("allocate " + std::to_string(size));
  return answer(allocate_on_host(at, size, cudaMemoryTypeManaged));
}
API cudaError_t cudaMemGetInfo(size_t* left, size_t* total) {
  has_context = true;
  *total = capacity();
  *left = capacity() - allocated;
  return answer(0);
}

API cudaError_t cudaHostRegister(void* at, size_t size, unsigned) {
  has_context = true;
  if (at == nullptr || size == 0) return answer(cudaErrorInvalidValue);
  // Page by page, as the driver locks: a neighbour on the same page counts as registered.
  const auto first = reinterpret_cast<std::uintptr_t>(at) & ~(kPage - 1);
  const auto end = reinterpret_cast<std::uintptr_t>(at) + size;
  std::lock_guard<std::mutex> hold(ranges_lock);
  auto next = ranges().lower_bound(first);
  if (range_of(first) != ranges().end() || (next != ranges().end() && next->first < end)) {
    return answer(cudaErrorHostMemoryAlreadyRegistered);
  }
  ranges()[reinterpret_cast<std::uintptr_t>(at)] = {size, cudaMemoryTypeHost, false};
  return answer(0);
}
API cudaError_t cudaHostUnregister(void* at) {
  synchronize_all();
  std::lock_guard<std::mutex> hold(ranges_lock);
  auto found = ranges().find(reinterpret_cast<std::uintptr_t>(at));
  if (found == ranges().end() || found->second.ours) {
    return answer(cudaErrorHostMemoryNotRegistered);
  }
  ranges().erase(found);
  return answer(0);
}
API cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  if (kind_at(host) != cudaMemoryTypeHost) return answer(cudaErrorInvalidValue);
  *device = host;
  return answer(0);
}
API cudaError_t cudaMemAdvise(const void* at, size_t size, cudaMemoryAdvise advice,
                              cudaMemLocation place) {
  if (const int fault = fault_of(__func__)) return answer(fault);
  const auto first = reinterpret_cast<std::uintptr_t>(at) & ~(kPage - 1);
  tell("advise " + std::to_string(advice) + " " + word_of(place) + " " +
       std::to_string(place.id) + " " + std::to_string(size) + " " +
       std::to_string(present(first, reinterpret_cast<std::uintptr_t>(at) + size - first)));
  return answer(kind_at(at) == cudaMemoryTypeManaged ? 0 : cudaErrorInvalidValue);
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* of, const void* at) {
  std::memset(of, 0, sizeof *of);
  of->type = kind_at(at);
  const bool known = of->type != cudaMemoryTypeUnregistered;
  of->device = known ? 0 : cudaInvalidDeviceId;
  of->devicePointer = known ? const_cast<void*>(at) : nullptr;
  of->hostPointer = of->type == cudaMemoryTypeDevice ? nullptr : const_cast<void*>(at);
  return answer(0);
}

API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind,
                                cudaStream_t handle) {
  has_context = true;
  if (size == 0) return answer(0);
  Stream* stream = stream_of(handle);
  const bool to_device = kind_at(to) == cudaMemoryTypeDevice;
  const bool from_device = kind_at(from) == cudaMemoryTypeDevice;
  const int direction = to_device == from_device ? -1 : to_device;
  if (direction >= 0) count(to_device ? kToDevice : kToHost);
  const bool pageable = kind_at(to) == cudaMemoryTypeUnregistered ||
                        kind_at(from) == cudaMemoryTypeUnregistered;
  if (pageable) count(kPageable);
  if (kind_at(from) == cudaMemoryTypeUnregistered) {  // pageable: staged before the call returns
    const auto* bytes = static_cast<const char*>(from);
    auto staged = std::make_shared<std::vector<char>>(bytes, bytes + size);
    stream->put_slow([=] { copy_over_link(to, staged->data(), size, direction); });
  } else {
    stream->put_slow([=] { copy_over_link(to, from, size, direction); });
  }
  if (kind_at(to) == cudaMemoryTypeUnregistered) stream->synchronize();
  return answer(0);
}
// One copy at a time, last descriptor first: a batch has no order.
API CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t number,
                                CUmemcpyAttributes* attributes, size_t* first, size_t kinds,
                                CUstream handle) {
  if (broken != 0) return static_cast<CUresult>(broken.load());
  if (!has_context) return CUDA_ERROR_INVALID_CONTEXT;
  const bool ordered = kinds == 1 && first[0] == 0 &&
                       attributes[0].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  if (number == 0 || !ordered || reinterpret_cast<std::uintptr_t>(handle) <= 2) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  struct Copy {
    CUdeviceptr to, from;
    size_t size;
  };
  auto copies = std::make_shared<std::vector<Copy>>();  // read now: the arrays are the caller's
  for (size_t k = number; k-- > 0;) copies->push_back({to[k], from[k], sizes[k]});
  count(kToDevice);
  stream_of(handle)->put_slow([copies] {
    for (const Copy& one : *copies) {
      void* there = reinterpret_cast<void*>(one.to);
      const void* here = reinterpret_cast<const void*>(one.from);
      if (!visible(there, one.size) || !visible(here, one.size)) {
        broken = CUDA_ERROR_ILLEGAL_ADDRESS;
        return;
      }
      copy_over_link(there, here, one.size, 1);
    }
  });
  return CUDA_SUCCESS;
}
API cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  const cudaError_t status = cudaMemcpyAsync(to, from, size, kind, nullptr);
  stream_of(nullptr)->synchronize();
  return status;
}
API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                  size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream) {
  stream_of(stream)->put_slow([=] {
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<char*>(to) + row * to_pitch,
                  static_cast<const char*>(from) + row * from_pitch, width);
    }
  });
  stream_of(stream)->synchronize();
  return answer(0);
}
API cudaError_t cudaMemsetAsync(void* at, int value, size_t size, cudaStream_t stream) {
  stream_of(stream)->put_slow([=] { std::memset(at, value, size); });
  return answer(0);
}
API cudaError_t cudaMemset(void* at, int value, size_t size) {
  cudaMemsetAsync(at, value, size, nullptr);
  stream_of(nullptr)->synchronize();
  return answer(0);
}

API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* at) {
  std::lock_guard<std::mutex> hold(ranges_lock);
  auto found = range_of(reinterpret_cast<std::uintptr_t>(at));
  if (found == ranges().end() || found->second.file < 0) return answer(cudaErrorInvalidValue);
  const MemoryHandle made{getpid(), found->second.file, found->second.size};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &made, sizeof made);
  return answer(0);
}
API cudaError_t cudaIpcOpenMemHandle(void** at, cudaIpcMemHandle_t handle, unsigned) {
  has_context = true;
  MemoryHandle from;
  std::memcpy(&from, &handle, sizeof from);
  if (from.process == getpid()) return answer(cudaErrorDeviceUninitialized);  // as CUDA has it
  const std::string path =
      "/proc/" + std::to_string(from.process) + "/fd/" + std::to_string(from.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0 || (*at = map(from.size, file)) == nullptr) return answer(cudaErrorMapBufferObjectFailed);
  keep(*at, {from.size, cudaMemoryTypeDevice, true, file, true});
  return answer(0);
}
API cudaError_t cudaIpcCloseMemHandle(void* at) { return answer(release(at)); }
