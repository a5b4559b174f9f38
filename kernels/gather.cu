// The feature gather: out[p] = table[ids[p]], on bytes, for a table that the GPU reads in place.
//
// One source for every launch policy. Macros choose a point of the grid (see grid.py):
//
//   GATHER_SHIFT   0 none: lane i of a row reads unit i.
//                  1 idle: lanes start at the 128 B line in which the row begins; those in front of
//                    the row do nothing.
//                  2 circular: lanes start at the first line boundary inside the row, and those left
//                    at the end read the head (Min et al., PVLDB 14(11) 2021, "circular shift").
//   GATHER_WIDTH   bytes that one lane loads at once: 1, 2, 4, 8 or 16. Table, row stride, row
//                  bytes and output must all be multiples of it.
//   GATHER_FLAT    0: blockDim.x lanes share a row, blockDim.y rows a block. 1: one thread a unit,
//                  rows end to end.
//   GATHER_ROWS    rows that a lane has in flight at once (row mapping only).
//   GATHER_LOADS   independent loads of one row that a lane has in flight at once.
//   GATHER_INDEX   bytes of an id: 4 or 8.
//
// The grid may be any size: blocks stride over the work. blockDim.x * blockDim.y is a multiple of
// 32, and in the row mapping blockDim.x is a power of two.
//
// A bad id is never used as an address. Its row of the output becomes zero, and where bad_id is
// given, the largest such id as an unsigned number is left there (set it to 0 beforehand, which no
// table with rows calls bad): ids that lie on the GPU need no look before the launch.
//
// GATHER_ROWS and GATHER_LOADS say how much is in flight, so the compiler may not unroll the loops
// over the work. Every loop bound is the same for all lanes of a warp, so the n-th load of each
// lane belongs to one warp instruction: requests.py counts what the link sees on that footing.

namespace gather {

using i64 = long long;
using u64 = unsigned long long;

constexpr int kLine = 128;
enum Shift { kNone = 0, kIdle = 1, kCircular = 2 };

template <int WIDTH> struct WordOf;
template <> struct WordOf<1> { using type = unsigned char; };
template <> struct WordOf<2> { using type = unsigned short; };
template <> struct WordOf<4> { using type = unsigned int; };
template <> struct WordOf<8> { using type = uint2; };
template <> struct WordOf<16> { using type = uint4; };

#ifndef GATHER_SHIM
// Rows are read once and written once: evict-first keeps both from displacing the model's data.
template <class Word> __device__ __forceinline__ Word load_if(bool wanted, const Word* from) {
  return wanted ? __ldcs(from) : Word{};
}
template <class Word> __device__ __forceinline__ void store(Word* to, Word value) {
  __stcs(to, value);
}
#endif

struct Job {
  const char* table;
  char* out;
  const i64* out_rows;  // where the row of each position goes; null: to its position
  i64 num_ids, num_rows, row_stride;
  int row_bytes;
  u64* bad_id;  // may be null
};

// One position of the batch, as one lane sees it.
struct Row {
  const char* from;
  char* to;
  int shift;      // units
  bool exists;    // the position is inside the batch
  bool readable;  // and its id is inside the table
};

// What has to be read before a row can be: kept apart, so that several such reads are in flight.
struct Entry {
  i64 position, id, target;
  bool exists;
};

template <class Id>
__device__ __forceinline__ Entry read_entry(const Job& job, const Id* ids, i64 position) {
  const bool exists = position < job.num_ids;
  const i64 known = exists ? position : job.num_ids - 1;  // reads without a branch around them
  const i64 id = static_cast<i64>(ids[known]);
  const i64 target = job.out_rows != nullptr ? job.out_rows[known] : known;
  return {position, exists ? id : -1, target, exists};
}

template <int SHIFT, int WIDTH, bool FLAT>
__device__ __forceinline__ Row open_row(const Job& job, const Entry& entry) {
  const bool readable = entry.id >= 0 && entry.id < job.num_rows;
  Row row{job.table, job.out, 0, entry.exists, readable};
  if (readable) row.from += entry.id * job.row_stride;
  row.to += entry.target * job.row_bytes;

  const u64 address = reinterpret_cast<u64>(row.from);
  if (SHIFT == kIdle) {
    row.shift = static_cast<int>(address % kLine) / WIDTH;
  } else if (SHIFT == kCircular) {
    // Row mapping: the first lane goes to the next line boundary. Flat: rows lie end to end over
    // the warps, so a thread goes to the address that is as far into its line as the thread is
    // into its 128 B of work.
    const u64 phase =
        FLAT ? static_cast<u64>(entry.position) * static_cast<u64>(job.row_bytes) : 0;
    row.shift = static_cast<int>((phase - address) % kLine) / WIDTH;
    if (row.shift >= job.row_bytes / WIDTH) row.shift = 0;  // the row ends before that boundary
  }
  return row;
}

__device__ __forceinline__ void report_bad(const Job& job, const Entry& entry, const Row& row) {
  if (row.exists && !row.readable && job.bad_id != nullptr) {
    atomicMax(job.bad_id, static_cast<u64>(entry.id));
  }
}

// The unit of the row that a slot stands for; outside [0, units) for a lane without work.
template <int SHIFT> __device__ __forceinline__ int unit_of(int slot, int units, int shift) {
  if (SHIFT == kIdle) return slot - shift;
  if (SHIFT == kCircular && slot < units) {
    const int unit = slot + shift;
    return unit < units ? unit : unit - units;
  }
  return slot;
}

template <int SHIFT, int WIDTH, int ROWS, int LOADS, class Id>
__device__ __forceinline__ void gather_rows(const Job& job, const Id* ids) {
  using Word = typename WordOf<WIDTH>::type;
  const int units = job.row_bytes / WIDTH;
  const int slots = units + (SHIFT == kIdle ? kLine / WIDTH - 1 : 0);
  const int lanes = blockDim.x;
  const i64 tile = static_cast<i64>(blockDim.y) * ROWS;

#pragma unroll 1
  for (i64 base = blockIdx.x * tile; base < job.num_ids; base += gridDim.x * tile) {
    Entry entries[ROWS];
    Row rows[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      entries[r] = read_entry(job, ids, base + static_cast<i64>(r) * blockDim.y + threadIdx.y);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      rows[r] = open_row<SHIFT, WIDTH, false>(job, entries[r]);
      if (threadIdx.x == 0) report_bad(job, entries[r], rows[r]);
    }
#pragma unroll 1
    for (int first = 0; first < slots; first += lanes * LOADS) {
      Word words[ROWS][LOADS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int k = 0; k < LOADS; ++k) {
          const int unit = unit_of<SHIFT>(first + k * lanes + static_cast<int>(threadIdx.x), units,
                                          rows[r].shift);
          const bool wanted = rows[r].readable && unit >= 0 && unit < units;
          words[r][k] = load_if(wanted, reinterpret_cast<const Word*>(rows[r].from) + unit);
        }
      }
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int k = 0; k < LOADS; ++k) {
          const int unit = unit_of<SHIFT>(first + k * lanes + static_cast<int>(threadIdx.x), units,
                                          rows[r].shift);
          if (rows[r].exists && unit >= 0 && unit < units) {
            store(reinterpret_cast<Word*>(rows[r].to) + unit, words[r][k]);
          }
        }
      }
    }
  }
}

template <int SHIFT, int WIDTH, int LOADS, class Id>
__device__ __forceinline__ void gather_flat(const Job& job, const Id* ids) {
  using Word = typename WordOf<WIDTH>::type;
  constexpr int line_units = kLine / WIDTH;
  const int units = job.row_bytes / WIDTH;
  // With idle lanes a row owns as many whole lines of slots as it can touch at most.
  const int slots =
      SHIFT == kIdle ? (units + 2 * line_units - 2) / line_units * line_units : units;
  const i64 total = job.num_ids * slots;
  const bool small = total <= 0xffffffffll;  // a 64-bit division costs many times a 32-bit one
  const i64 tile = static_cast<i64>(blockDim.x) * LOADS;

#pragma unroll 1
  for (i64 base = blockIdx.x * tile; base < total; base += gridDim.x * tile) {
    Entry entries[LOADS];
    Row rows[LOADS];
    int unit[LOADS];
    Word words[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      const i64 item = base + static_cast<i64>(k) * blockDim.x + threadIdx.x;
      const i64 position =
          small ? static_cast<unsigned>(item) / static_cast<unsigned>(slots) : item / slots;
      unit[k] = static_cast<int>(item - position * slots);
      entries[k] = read_entry(job, ids, item < total ? position : job.num_ids);
    }
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      const int slot = unit[k];
      rows[k] = open_row<SHIFT, WIDTH, true>(job, entries[k]);
      if (slot == 0) report_bad(job, entries[k], rows[k]);
      unit[k] = unit_of<SHIFT>(slot, units, rows[k].shift);
    }
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      const bool wanted = rows[k].readable && unit[k] >= 0 && unit[k] < units;
      words[k] = load_if(wanted, reinterpret_cast<const Word*>(rows[k].from) + unit[k]);
    }
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      if (rows[k].exists && unit[k] >= 0 && unit[k] < units) {
        store(reinterpret_cast<Word*>(rows[k].to) + unit[k], words[k]);
      }
    }
  }
}

template <int SHIFT, int WIDTH, bool FLAT, int ROWS, int LOADS, class Id>
__device__ __forceinline__ void gather(const Job& job, const Id* ids) {
  if constexpr (FLAT) {
    gather_flat<SHIFT, WIDTH, LOADS>(job, ids);
  } else {
    gather_rows<SHIFT, WIDTH, ROWS, LOADS>(job, ids);
  }
}

}  // namespace gather

#ifndef GATHER_SHIM
#if GATHER_INDEX == 4
using GatherId = int;
#else
using GatherId = long long;
#endif

extern "C" __global__ void __launch_bounds__(1024)
    gather_kernel(const char* table, const GatherId* ids, char* out, const long long* out_rows,
                  long long num_ids, long long num_rows, long long row_stride, int row_bytes,
                  unsigned long long* bad_id) {
  const gather::Job job{table,    out,        out_rows,  num_ids,
                        num_rows, row_stride, row_bytes, bad_id};
  gather::gather<GATHER_SHIFT, GATHER_WIDTH, GATHER_FLAT, GATHER_ROWS, GATHER_LOADS>(job, ids);
}
#endif
