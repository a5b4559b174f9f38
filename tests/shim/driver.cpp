// Runs gather.cu on the host for execute.py: reads jobs from standard input, writes results to
// standard output, until the input ends. A process of its own, so that AddressSanitizer and
// UndefinedBehaviorSanitizer watch the kernel and nothing else, and an abort is the job's verdict.
//
// The bytes around table and output are poisoned: one byte too far is a report, not luck.

#define GATHER_SHIM 1
#include "cuda_shim.h"

#include KERNEL_FILE

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sys/mman.h>
#include <tuple>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n)
#define ASAN_UNPOISON_MEMORY_REGION(p, n)
#endif

using gather::i64;
using gather::Job;
using gather::u64;

// The header of a job; execute.py packs the same fields in the same order.
struct Header {
  i64 shift, width, flat, rows, loads, index_bytes;
  i64 block_x, block_y, blocks, first_block, last_block;
  i64 num_ids, num_rows, row_bytes, row_stride;
  i64 table_offset, out_offset;  // bytes past a 256 B boundary
  i64 permuted, record, report_bad;
  i64 tail;  // 0, or: only the last `tail` ids are given, the others are row 0 (see run_sparse)
};

using Kernel = void (*)(const Job&, const void*);
using Key = std::tuple<i64, i64, i64, i64, i64, i64>;
static std::map<Key, Kernel> kernels;

template <int SHIFT, int WIDTH, bool FLAT, int ROWS, int LOADS, class Id>
void run_thread(const Job& job, const void* ids) {
  gather::gather<SHIFT, WIDTH, FLAT, ROWS, LOADS>(job, static_cast<const Id*>(ids));
}

template <int SHIFT, int WIDTH, class Id> void add_points() {
  const i64 s = SHIFT, w = WIDTH, i = sizeof(Id);
  kernels[{s, w, 0, 1, 1, i}] = run_thread<SHIFT, WIDTH, false, 1, 1, Id>;
  kernels[{s, w, 1, 1, 1, i}] = run_thread<SHIFT, WIDTH, true, 1, 1, Id>;
#ifndef GATHER_SHIM_FEW
  kernels[{s, w, 0, 1, 4, i}] = run_thread<SHIFT, WIDTH, false, 1, 4, Id>;
  kernels[{s, w, 0, 4, 1, i}] = run_thread<SHIFT, WIDTH, false, 4, 1, Id>;
  kernels[{s, w, 1, 1, 4, i}] = run_thread<SHIFT, WIDTH, true, 1, 4, Id>;
#endif
}

template <int SHIFT> void add_shift() {
  add_points<SHIFT, 4, i64>();
#ifndef GATHER_SHIM_FEW
  add_points<SHIFT, 1, i64>();
  add_points<SHIFT, 2, i64>();
  add_points<SHIFT, 8, i64>();
  add_points<SHIFT, 16, i64>();
  add_points<SHIFT, 1, int>();
  add_points<SHIFT, 2, int>();
  add_points<SHIFT, 4, int>();
  add_points<SHIFT, 8, int>();
  add_points<SHIFT, 16, int>();
#endif
}

[[noreturn]] static void fail(const char* what) {
  std::fprintf(stderr, "shim driver: %s\n", what);
  std::exit(2);
}

static void read_all(void* to, size_t bytes) {
  if (bytes != 0 && std::fread(to, 1, bytes, stdin) != bytes) fail("input ended inside a job");
}

static void write_all(const void* from, size_t bytes) {
  if (bytes != 0 && std::fwrite(from, 1, bytes, stdout) != bytes) fail("cannot write the result");
}

// `size` bytes that start `offset` bytes past a 256 B boundary, with forbidden bytes around them.
class Buffer {
 public:
  Buffer(size_t size, size_t offset) : whole_((size + offset + 511) / 256 * 256) {
    base_ = static_cast<char*>(std::aligned_alloc(256, whole_));
    if (base_ == nullptr) fail("out of memory");
    data = base_ + offset;
    std::memset(base_, 0xA5, whole_);
    ASAN_POISON_MEMORY_REGION(base_, offset);
    ASAN_POISON_MEMORY_REGION(data + size, whole_ - offset - size);
  }
  ~Buffer() {
    ASAN_UNPOISON_MEMORY_REGION(base_, whole_);
    std::free(base_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  char* data;

 private:
  size_t whole_;
  char* base_;
};

static void launch(const Header& h, const Job& job, const void* ids) {
  const auto found = kernels.find({h.shift, h.width, h.flat, h.rows, h.loads, h.index_bytes});
  if (found == kernels.end()) fail("this point of the grid is not compiled in");
  blockDim = {static_cast<unsigned>(h.block_x), static_cast<unsigned>(h.block_y), 1};
  gridDim = {static_cast<unsigned>(h.blocks), 1, 1};
  for (i64 block = h.first_block; block < h.last_block; ++block) {
    blockIdx = {static_cast<unsigned>(block), 0, 0};
    for (unsigned y = 0; y < blockDim.y; ++y) {
      for (unsigned x = 0; x < blockDim.x; ++x) {
        threadIdx = {x, y, 0};
        load_place = 0;
        found->second(job, ids);
      }
    }
  }
}

static void reply(u64 bad_id, const char* out, size_t out_bytes,
                  std::vector<LoadRecord>& records, u64 origin) {
  for (LoadRecord& r : records) r.address -= origin;
  const u64 head[3] = {bad_id, out_bytes, records.size()};
  write_all(head, sizeof head);
  write_all(out, out_bytes);
  write_all(records.data(), records.size() * sizeof(LoadRecord));
  std::fflush(stdout);
}

static void run_dense(const Header& h) {
  const size_t table_bytes =
      h.num_rows == 0 ? 0 : static_cast<size_t>((h.num_rows - 1) * h.row_stride + h.row_bytes);
  const size_t out_bytes = static_cast<size_t>(h.num_ids * h.row_bytes);
  Buffer table(table_bytes, h.table_offset), out(out_bytes, h.out_offset);
  Buffer ids(h.num_ids * h.index_bytes, 0), out_rows(h.permuted ? h.num_ids * 8 : 0, 0);
  read_all(table.data, table_bytes);
  read_all(ids.data, h.num_ids * h.index_bytes);
  read_all(out_rows.data, h.permuted ? h.num_ids * 8 : 0);

  u64 bad_id = 0;
  std::vector<LoadRecord> records;
  load_records = h.record ? &records : nullptr;
  launch(h,
         {table.data, out.data,
          h.permuted ? reinterpret_cast<const i64*>(out_rows.data) : nullptr, h.num_ids,
          h.num_rows, h.row_stride, static_cast<int>(h.row_bytes),
          h.report_bad ? &bad_id : nullptr},
         ids.data);
  load_records = nullptr;
  reply(bad_id, out.data, out_bytes, records,
        reinterpret_cast<u64>(table.data) - static_cast<u64>(h.table_offset));
}

static char* reserve(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) fail("cannot reserve address space for a large table");
  return static_cast<char*>(at);
}

// Tables, ids and outputs larger than memory: pages that nobody touches cost nothing. The bytes
// of the rows that the tail asks for follow a formula of their offset, which execute.py knows.
static void run_sparse(const Header& h) {
  const size_t table_bytes = static_cast<size_t>(h.num_rows * h.row_stride);
  const size_t out_bytes = static_cast<size_t>(h.num_ids * h.row_bytes);
  char* table = reserve(table_bytes);
  char* out = reserve(out_bytes);
  char* ids = reserve(h.num_ids * h.index_bytes);
  char* tail = ids + (h.num_ids - h.tail) * h.index_bytes;
  read_all(tail, h.tail * h.index_bytes);
  for (i64 t = 0; t < h.tail; ++t) {
    const i64 id = h.index_bytes == 4 ? reinterpret_cast<const int*>(tail)[t]
                                      : reinterpret_cast<const i64*>(tail)[t];
    for (i64 o = id * h.row_stride; o < id * h.row_stride + h.row_bytes; ++o) {
      table[o] = static_cast<char>((static_cast<u64>(o) * 0x9E3779B97F4A7C15ull) >> 56);
    }
  }
  std::vector<LoadRecord> none;
  launch(h,
         {table, out, nullptr, h.num_ids, h.num_rows, h.row_stride,
          static_cast<int>(h.row_bytes), nullptr},
         ids);
  const size_t tail_bytes = static_cast<size_t>(h.tail * h.row_bytes);
  reply(0, out + out_bytes - tail_bytes, tail_bytes, none, 0);
  munmap(table, table_bytes);
  munmap(out, out_bytes);
  munmap(ids, h.num_ids * h.index_bytes);
}

int main() {
  add_shift<gather::kNone>();
  add_shift<gather::kIdle>();
  add_shift<gather::kCircular>();
  Header header;
  while (std::fread(&header, sizeof header, 1, stdin) == 1) {
    if (header.tail != 0) {
      run_sparse(header);
    } else {
      run_dense(header);
    }
  }
  return 0;
}
