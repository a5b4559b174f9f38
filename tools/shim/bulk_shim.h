// The bulk copies of gather.cu for a machine without a GPU, each as late as its rules allow: a load
// lands when its phase is waited for, a store reads its room when stores are waited for, and what
// nobody waits for does not happen. So a wait that is missing, or for a phase that is over, gives
// wrong rows. Threads run one after another: only one lane has copies in flight.

#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define BULK_SHIM 1
#define __shared__ static thread_local
#define __align__(bytes) __attribute__((aligned(bytes)))

namespace gather {

struct BulkCopy {
  char* to;
  const char* from;
  int bytes;
};
inline thread_local std::vector<BulkCopy> bulk_loads, bulk_stores;

[[noreturn]] inline void bulk_fail(const char* what) {
  std::fprintf(stderr, "bulk copies: %s\n", what);
  std::abort();
}

inline void bulk_make(std::vector<BulkCopy>& copies) {
  for (const BulkCopy& one : copies) std::memcpy(one.to, one.from, one.bytes);
  copies.clear();
}

// The barrier's value is how many of its phases are over.
inline void bulk_begin(unsigned long long* barrier) {
  *barrier = 0;
  bulk_loads.clear();
  bulk_stores.clear();
}
inline void bulk_load(char* room, const char* from, int bytes, unsigned long long*) {
  const auto all = reinterpret_cast<std::size_t>(room) | reinterpret_cast<std::size_t>(from);
  if ((all | bytes) % 16 != 0 || bytes <= 0) bulk_fail("no multiple of 16 B");
  RECORD_BULK(from, bytes);
  bulk_loads.push_back({room, from, bytes});
}
inline void bulk_wait(unsigned long long* barrier, int parity) {
  if (*barrier % 2 != static_cast<unsigned>(parity)) return;
  if (bulk_loads.empty()) bulk_fail("a wait for a phase that nothing ends");
  bulk_make(bulk_loads);
  ++*barrier;
}
inline void bulk_store(char* to, const char* room, int bytes) {
  if (reinterpret_cast<std::size_t>(to) % 16 != 0) bulk_fail("no multiple of 16 B");
  bulk_stores.push_back({to, room, bytes});
}
inline void bulk_drain() { bulk_make(bulk_stores); }
inline void bulk_end() { bulk_make(bulk_stores); }

}  // namespace gather
