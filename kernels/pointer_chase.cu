// One thread follows pointers through memory: each load waits for the one before, so the time for a
// hop is a round trip to wherever the table lies.
//
// `table` holds word indices that form one ring; `hops` steps are taken from word `start`, and the
// word that is reached goes to `end`: it tells that every hop was made, and where to go on. Loads
// ask past the caches (ld.cv), so a ring that has been walked before costs the same again.

extern "C" __global__ void chase_kernel(const unsigned long long* table, unsigned long long start,
                                        int hops, unsigned long long* end) {
  unsigned long long at = start;
#pragma unroll 1
  for (int i = 0; i < hops; ++i) at = __ldcv(table + at);
  *end = at;
}
