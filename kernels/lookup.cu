// Where each row of a minibatch lies, of a table of which some rows are kept elsewhere: one launch
// before the gather (strategies/cached_zero_copy.py).
//
// `slots` has a word for each row of the table: its place among those that are kept, or below 0.
// Both places are rows of one table under other ids: `first_here` + slot, or `first_there` + id.
// A bad id is never used as an index: it becomes -1, which the gather reads nowhere, and its name is
// left in `bad_id` as gather.cu does. `hits` counts the rows that are kept.

extern "C" __global__ void lookup_kernel(long long positions, const void* ids, long long id_bytes,
                                         long long num_rows, const int* slots, long long first_here,
                                         long long first_there, long long* rows, signed char* near,
                                         unsigned long long* hits, unsigned long long* bad_id) {
  const long long p = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (p >= positions) return;
  const long long id = id_bytes == 4 ? static_cast<const int*>(ids)[p]
                                     : static_cast<const long long*>(ids)[p];
  if (id < 0 || id >= num_rows) {
    atomicMax(bad_id, static_cast<unsigned long long>(id));
    rows[p] = -1;
    near[p] = 0;
    return;
  }
  const int slot = slots[id];
  if (slot >= 0) atomicAdd(hits, 1ull);
  rows[p] = slot >= 0 ? first_here + slot : first_there + id;
  near[p] = slot >= 0;
}
