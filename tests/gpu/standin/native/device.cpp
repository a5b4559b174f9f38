// The device, its attributes and errors; torch's own kernels, which are registered and never run.

#include "gpu.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <pthread.h>
#include <sstream>
#include <unistd.h>

namespace standin {

std::atomic<int> broken{0};
thread_local bool has_context = false;

namespace {
thread_local int last_error = 0;

// An MPS daemon runs where it says so, see rehearse.py.
bool under_mps() {
  const char* folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  return folder != nullptr && access((std::string(folder) + "/control").c_str(), F_OK) == 0;
}

bool known(int device) { return device >= 0 && device < static_cast<int>(gpus().size()); }

cudaError_t not_run(const void* kernel) {
  static const char* loud = std::getenv("STANDIN_LOUD");
  Dl_info found;
  if (loud != nullptr && dladdr(kernel, &found) != 0) {
    std::fprintf(stderr, "stand-in: a kernel of torch's is not run: %s\n",
                 found.dli_sname != nullptr ? found.dli_sname : "?");
  }
  return answer(0);
}
}  // namespace

const std::vector<int>& gpus() {
  static const std::vector<int> all = [] {
    pthread_atfork(nullptr, nullptr, [] { broken = cudaErrorInitializationError; });
    std::vector<int> found;
    const char* named = std::getenv("CUDA_VISIBLE_DEVICES");
    std::istringstream numbers(named != nullptr ? named : "0,1");
    for (std::string one; std::getline(numbers, one, ',');) {
      const int gpu = std::atoi(one.c_str());
      if (one.find_first_not_of("0123456789") != std::string::npos || gpu >= kGpus) break;
      found.push_back(gpu);
    }
    return found;
  }();
  return all;
}

cudaError_t answer(int status) {
  if (status == 0) status = broken;
  if (status != 0) last_error = status;
  return static_cast<cudaError_t>(status);
}

}  // namespace standin

using namespace standin;

API cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(gpus().size());
  return answer(*count == 0 ? cudaErrorNoDevice : 0);
}
API cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return answer(0);
}
API cudaError_t cudaSetDevice(int device) {
  has_context = device == 0 && !gpus().empty();
  return answer(has_context ? 0 : cudaErrorInvalidDevice);
}
API cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return answer(0);
}
API cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* of, int device) {
  if (!known(device)) return answer(cudaErrorInvalidDevice);
  size_t left, total;
  cudaMemGetInfo(&left, &total);
  std::memset(of, 0, sizeof *of);
  std::strcpy(of->name, kName);
  for (int i = 0; i < 16; ++i) of->uuid.bytes[i] = static_cast<char>(i + 1);
  of->uuid.bytes[15] = static_cast<char>(16 + gpus()[device]);
  of->totalGlobalMem = total;
  of->major = 9;
  of->multiProcessorCount = kMultiprocessors;
  of->warpSize = 32;
  of->maxThreadsPerBlock = 1024;
  of->maxThreadsDim[0] = of->maxThreadsDim[1] = 1024;
  of->maxThreadsDim[2] = 64;
  of->maxGridSize[0] = 2147483647;
  of->maxGridSize[1] = of->maxGridSize[2] = 65535;
  of->maxThreadsPerMultiProcessor = 2048;
  of->maxBlocksPerMultiProcessor = 32;
  of->regsPerBlock = of->regsPerMultiprocessor = 65536;
  of->sharedMemPerBlock = 49152;
  of->sharedMemPerMultiprocessor = 233472;
  of->sharedMemPerBlockOptin = 232448;
  of->totalConstMem = 65536;
  of->l2CacheSize = 1 << 20;
  of->pciBusID = 3 + gpus()[device];
  of->canMapHostMemory = of->unifiedAddressing = of->concurrentKernels = 1;
  of->managedMemory = of->concurrentManagedAccess = of->streamPrioritiesSupported = 1;
  of->hostRegisterSupported = of->hostRegisterReadOnlySupported = 1;
  of->asyncEngineCount = 3;
  return answer(0);
}
API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!known(device)) return answer(cudaErrorInvalidDevice);
  switch (static_cast<int>(attribute)) {
    case cudaDevAttrMultiProcessorCount: *value = kMultiprocessors; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrL2CacheSize: *value = 1 << 20; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrHostRegisterReadOnlySupported:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrIpcEventSupport:
    case cudaDevAttrCanUseHostPointerForRegisteredMem: *value = 1; break;
    case cudaDevAttrMpsEnabled: *value = under_mps() ? 1 : 0; break;
    case cudaDevAttrHostNumaId: *value = -1; break;
    default: *value = 0;
  }
  return answer(0);
}
API cudaError_t cudaDeviceGetPCIBusId(char* text, int room, int device) {
  if (!known(device)) return answer(cudaErrorInvalidDevice);
  std::snprintf(text, room, "0000:%02x:00.0", 3 + gpus()[device]);
  return answer(0);
}
API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return answer(0);
}
API const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
API const char* cudaGetErrorString(cudaError_t error) {
  static thread_local char text[64];
  std::snprintf(text, sizeof text, "error %d of the stand-in for CUDA", static_cast<int>(error));
  return text;
}
API cudaError_t cudaGetLastError() {
  const int error = last_error;
  last_error = broken;
  return static_cast<cudaError_t>(error);
}
API cudaError_t cudaPeekAtLastError() { return static_cast<cudaError_t>(last_error); }
API cudaError_t cudaProfilerStart() { return answer(0); }
API cudaError_t cudaProfilerStop() { return answer(0); }

API void** __cudaRegisterFatBinary(void*) {
  static void* handle[4];
  return handle;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                                dim3*, int*) {}
API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
API char __cudaInitModule(void**) { return 1; }
API unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 0; }
API cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return answer(0); }
API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return answer(0);
}
API cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return not_run(kernel);
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return not_run(kernel);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* kernel, void**) {
  return not_run(kernel);
}
API cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3, dim3, void**, size_t,
                                            cudaStream_t) {
  return not_run(kernel);
}
API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* of, const void*) {
  std::memset(of, 0, sizeof *of);
  of->maxThreadsPerBlock = 1024;
  of->binaryVersion = of->ptxVersion = 90;
  return answer(0);
}
API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return answer(0); }
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int,
                                                              size_t) {
  *blocks = 2;
  return answer(0);
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*,
                                                                       int, size_t, unsigned) {
  *blocks = 2;
  return answer(0);
}
