// The driver's functions that the project calls: contexts, libraries, launches, green contexts.
//
// A cubin cannot run here. What runs is the same source, built by g++ when NVRTC made the cubin and
// kept under the cubin's hash (standin_program.py). Before a kernel runs, the memory that it is
// about to read and write is checked: what the GPU would not see breaks the device, as on a GPU.

#include "gpu.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>

using namespace standin;

namespace {

// What a built kernel exports, see kernel_after.h.
struct Kernel {
  void (*run)(void** values, unsigned blocks, unsigned block_x, unsigned block_y);
  int (*allowed)(void** values, bool (*visible)(const void*, size_t));
  const int* sizes;  // of its arguments in bytes; 0 ends them
};

const CUcontext kContext = reinterpret_cast<CUcontext>(1);

size_t elf_size(const unsigned char* bytes) {
  const auto* head = reinterpret_cast<const Elf64_Ehdr*>(bytes);
  size_t end = std::max<size_t>(head->e_shoff + size_t{head->e_shnum} * head->e_shentsize,
                                head->e_phoff + size_t{head->e_phnum} * head->e_phentsize);
  for (int i = 0; i < head->e_shnum; ++i) {
    const auto* section = reinterpret_cast<const Elf64_Shdr*>(
        bytes + head->e_shoff + size_t(i) * head->e_shentsize);
    if (section->sh_type != SHT_NOBITS) {
      end = std::max<size_t>(end, section->sh_offset + section->sh_size);
    }
  }
  return end;
}

// FNV-1a, as in standin_program.py.
std::uint64_t hash_of(const unsigned char* bytes, size_t size) {
  std::uint64_t hash = 1469598103934665603ull;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 1099511628211ull;
  return hash;
}

}  // namespace

API CUresult cuInit(unsigned) {
  return gpus().empty() ? CUDA_ERROR_NO_DEVICE : static_cast<CUresult>(broken.load());
}
API CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  const bool known = ordinal >= 0 && ordinal < static_cast<int>(gpus().size());
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
API CUresult cuDeviceGetCount(int* count) {
  *count = static_cast<int>(gpus().size());
  return CUDA_SUCCESS;
}
#undef cuDeviceGetUuid
API CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  for (int i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<char>(i + 1);
  uuid->bytes[15] = static_cast<char>(16 + gpus()[device]);
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = has_context ? kContext : nullptr;
  return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext context) {
  has_context = context != nullptr;
  return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = kContext;
  return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorString(CUresult error, const char** text) {
  static thread_local char said[64];
  std::snprintf(said, sizeof said, "error %d of the stand-in for CUDA", static_cast<int>(error));
  *text = said;
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorName(CUresult, const char** text) {
  *text = "CUDA_ERROR";
  return CUDA_SUCCESS;
}
// NVRTC asks for a table of the driver's that nobody documents, and does without it.
API CUresult cuGetExportTable(const void** table, const CUuuid*) {
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

API CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned,
                               CUlibraryOption*, void**, unsigned) {
  const auto* bytes = static_cast<const unsigned char*>(code);
  if (std::memcmp(bytes, ELFMAG, SELFMAG) != 0) return CUDA_ERROR_INVALID_IMAGE;
  char path[4096];
  std::snprintf(path, sizeof path, "%s/%016llx.so", std::getenv("STANDIN_KERNELS"),
                static_cast<unsigned long long>(hash_of(bytes, elf_size(bytes))));
  *library = static_cast<CUlibrary>(dlopen(path, RTLD_NOW | RTLD_LOCAL));
  if (*library != nullptr) return CUDA_SUCCESS;
  std::fprintf(stderr, "stand-in: a cubin that was not compiled under it: %s\n", dlerror());
  return CUDA_ERROR_NO_BINARY_FOR_GPU;
}
API CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  const auto part = [&](const char* what) { return dlsym(library, (what + std::string(name)).c_str()); };
  auto* made = new Kernel;
  made->run = reinterpret_cast<decltype(made->run)>(part("run_"));
  made->allowed = reinterpret_cast<decltype(made->allowed)>(part("allowed_"));
  if (made->run == nullptr) return CUDA_ERROR_NOT_FOUND;
  made->sizes = reinterpret_cast<const int* (*)()>(part("sizes_"))();
  *kernel = reinterpret_cast<CUkernel>(made);
  return CUDA_SUCCESS;
}
API CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned grid_y, unsigned grid_z,
                            unsigned x, unsigned y, unsigned z, unsigned shared_bytes, CUstream to,
                            void** given, void** extra) {
  if (broken != 0) return static_cast<CUresult>(broken.load());
  if (!has_context && to == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (blocks == 0 || x == 0 || y == 0 || x * y > 1024 || grid_y != 1 || grid_z != 1 || z != 1 ||
      shared_bytes != 0 || extra != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  count(kLaunches);
  const Kernel kernel = *reinterpret_cast<const Kernel*>(function);
  std::vector<std::uint64_t> values;  // copied now: the caller's may change when this returns
  for (int i = 0; kernel.sizes[i] != 0; ++i) {
    values.push_back(0);
    std::memcpy(&values.back(), given[i], kernel.sizes[i]);
  }
  stream_of(to)->put_slow([=]() mutable {
    std::vector<void*> places;
    for (auto& value : values) places.push_back(&value);
    if (kernel.allowed(places.data(), visible) == 0) {
      std::fprintf(stderr, "stand-in: a kernel was given memory that the GPU does not see\n");
      broken = CUDA_ERROR_ILLEGAL_ADDRESS;
    } else {
      kernel.run(places.data(), blocks, x, y);
    }
  });
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetDevResource(CUdevice, CUdevResource* resource, CUdevResourceType type) {
  std::memset(resource, 0, sizeof *resource);
  resource->type = type;
  resource->sm.smCount = kMultiprocessors;
  return CUDA_SUCCESS;
}
API CUresult cuDevSmResourceSplitByCount(CUdevResource* parts, unsigned* groups,
                                         const CUdevResource* whole, CUdevResource* rest, unsigned,
                                         unsigned least) {
  const unsigned count = (least + 7) / 8 * 8;  // as compute capability 9.0 rounds
  if (count > whole->sm.smCount) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  for (unsigned i = 0; parts != nullptr && i < *groups; ++i) {
    parts[i] = *whole;
    parts[i].sm.smCount = count;
  }
  if (rest != nullptr) {
    *rest = *whole;
    rest->sm.smCount -= count;
  }
  return CUDA_SUCCESS;
}
API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* made, CUdevResource* of, unsigned) {
  *made = reinterpret_cast<CUdevResourceDesc>(new CUdevResource(*of));
  return CUDA_SUCCESS;
}
API CUresult cuGreenCtxCreate(CUgreenCtx* made, CUdevResourceDesc of, CUdevice, unsigned flags) {
  *made = reinterpret_cast<CUgreenCtx>(of);
  const bool good = of != nullptr && flags == CU_GREEN_CTX_DEFAULT_STREAM;
  return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuGreenCtxStreamCreate(CUstream* made, CUgreenCtx, unsigned flags, int priority) {
  *made = reinterpret_cast<CUstream>(make_stream(priority, flags));
  return flags == CU_STREAM_NON_BLOCKING ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t,
                                 CUdriverProcAddressQueryResult* found) {
  static void* const self = dlopen("libcuda.so.1", RTLD_NOW);
  const bool itself = std::strcmp(name, "cuGetProcAddress") == 0;
  *function = dlsym(self, itself ? "cuGetProcAddress_v2" : name);
  const bool known = *function != nullptr;
  if (found != nullptr) {
    *found = known ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return known ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                                 unsigned long long,
                                                 cudaDriverEntryPointQueryResult* found) {
  const CUresult status = cuGetProcAddress_v2(name, function, 0, 0, nullptr);
  if (found != nullptr) {
    *found = status == CUDA_SUCCESS ? cudaDriverEntryPointSuccess
                                    : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}
