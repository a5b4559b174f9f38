// A CUDA driver that only takes notes: enough of libcuda.so.1 for the real bindings to load it and
// pass their arguments, on a machine without a GPU. Every call is a line on stderr.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef void* Handle;

#define NOTE(...) (fprintf(stderr, "stub " __VA_ARGS__), fputc('\n', stderr))

static Result cuInit(unsigned flags) { return NOTE("cuInit %u", flags), 0; }
static Result cuDriverGetVersion(int* version) { return *version = 13000, 0; }
static Result cuCtxGetCurrent(Handle* context) { return *context = 0, 0; }
static Result cuLibraryLoadData(Handle* library, const void* code, Handle options, Handle values,
                                unsigned count, Handle library_options, Handle library_values,
                                unsigned library_count) {
  NOTE("cuLibraryLoadData %.4s %u %u", (const char*)code + 1, count, library_count);
  (void)options, (void)values, (void)library_options, (void)library_values;
  return *library = (Handle)0x11B, 0;
}
static Result cuLibraryGetKernel(Handle* kernel, Handle library, const char* name) {
  NOTE("cuLibraryGetKernel %p %s", library, name);
  return *kernel = (Handle)0x4E1, 0;
}
static Result cuLaunchKernel(Handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                             unsigned by, unsigned bz, unsigned shared, Handle stream, void** p,
                             void** extra) {
  NOTE("cuLaunchKernel %p grid %u %u %u block %u %u %u shared %u stream %p extra %d", function, gx,
       gy, gz, bx, by, bz, shared, stream, extra != 0);
  NOTE("arguments %p %p %p %p %lld %lld %lld %d %p", *(void**)p[0], *(void**)p[1], *(void**)p[2],
       *(void**)p[3], *(long long*)p[4], *(long long*)p[5], *(long long*)p[6], *(int*)p[7],
       *(void**)p[8]);
  return 0;
}
static Result unknown(void) { return 801; }

#define KNOWN(name) {#name, (void*)name}
static const struct {
  const char* name;
  void* function;
} table[] = {
    KNOWN(cuInit), KNOWN(cuDriverGetVersion), KNOWN(cuCtxGetCurrent),
    KNOWN(cuLibraryLoadData), KNOWN(cuLibraryGetKernel), KNOWN(cuLaunchKernel)};

Result cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags,
                           int* status) {
  (void)version, (void)flags;
  *function = (void*)unknown;
  if (status != 0) *status = 0;
  if (strncmp(name, "cuGetProcAddress", 16) == 0) *function = (void*)cuGetProcAddress_v2;
  for (unsigned k = 0; k < sizeof(table) / sizeof(table[0]); ++k) {
    if (strcmp(name, table[k].name) == 0) *function = table[k].function;
  }
  return 0;
}
Result cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, 0);
}
