// Neighbour sampling on the GPU: a layer of a minibatch in four launches and two prefix sums.
//
// It draws what the CPU sampler draws, bit for bit (bench/sampling/kernels.py), and numbers nodes in
// the same order. bench/sampling/device_sampler.py launches, in this order:
//
//   count_kernel     edges of each target     their prefix sum is `ends`
//   draw_kernel      all edges, and `first`: where each node is named first
//   mark_kernel      1 at such places         their prefix sum is `ranks`
//   relabel_kernel   local numbers, and the nodes that they stand for
//
// A position is a place in the list of the targets followed by the edges' sources. Each position has a
// thread of its own, so a hub's list is copied by many, and an edge finds its neighbour without what
// the threads beside it found. The price is about fanout / 2 more hashes an edge.
//
// The host does not wait to hear how many targets and edges there are: it gives both lists all the
// room that they could need. Behind the last target stands -1, and behind the last edge, the last of
// `ends`, is nothing; relabel_kernel tells both numbers.
//
// `first` has a word for each node of the graph and is never cleared. Positions are written into it
// from `base` on, and each layer's base is so low that all of its words are below every older one.

namespace sample {

using i64 = long long;
using u64 = unsigned long long;

constexpr u64 kGolden = 0x9E3779B97F4A7C15ull;

__device__ __forceinline__ i64 this_position() {
  return static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// SplitMix64's finaliser, as in bench/sampling/splitmix.py.
__device__ __forceinline__ u64 mix(u64 z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// Floyd's algorithm: turn j draws a place of the first spare + j + 1, where `spare` neighbours of
// the target are not taken. If that place is taken already, it takes the last of them.
struct Floyd {
  u64 state;
  i64 spare;

  __device__ __forceinline__ i64 drawn(i64 turn) const {
    const u64 z = mix(state + kGolden * static_cast<u64>(turn + 1));
    const u64 bound = static_cast<u64>(spare + turn + 1);
    return static_cast<i64>(((z >> 32) * bound + (((z & 0xFFFFFFFFull) * bound) >> 32)) >> 32);
  }

  // A place is taken before a turn if an earlier turn drew it. Else it can only be the last place of
  // an earlier turn, and is taken if what that one drew had been taken.
  __device__ __forceinline__ i64 taken(i64 turn) const {
    const i64 mine = drawn(turn);
    i64 place = mine, before = turn;
    while (true) {
      for (i64 j = 0; j < before; ++j) {
        if (drawn(j) == place) return spare + turn;
      }
      if (place < spare || place >= spare + before) return mine;
      before = place - spare;
      place = drawn(before);
    }
  }
};

// The target of an edge: the first whose edges end behind it.
__device__ __forceinline__ i64 target_of(i64 edge, const i64* ends, i64 targets) {
  i64 low = 0, high = targets - 1;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (ends[middle] > edge) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// The node that stands at a position, -1 where none does.
__device__ __forceinline__ i64 node_at(i64 position, const i64* nodes, const i64* ends, i64 targets,
                                       const i64* sources) {
  if (position < targets) return nodes[position];
  const i64 edge = position - targets;
  return edge < ends[targets - 1] ? sources[edge] : -1;
}

}  // namespace sample

using sample::i64;
using sample::u64;

// How many edges each node gets: none for the -1 that relabel_kernel leaves behind the last node.
extern "C" __global__ void count_kernel(i64 positions, const i64* indptr, const i64* nodes,
                                        i64 fanout, i64* counts) {
  const i64 p = sample::this_position();
  if (p >= positions) return;
  const i64 node = nodes[p];
  const i64 degree = node < 0 ? 0 : indptr[node + 1] - indptr[node];
  counts[p] = fanout >= 0 && fanout < degree ? fanout : degree;
}

// The edges: all sources (as nodes of the graph), and behind them the targets (as local numbers).
extern "C" __global__ void draw_kernel(i64 positions, const i64* indptr, const void* indices,
                                       i64 index_bytes, const i64* nodes, const i64* ends,
                                       i64 targets, u64 key, i64* edges, i64* first, i64 base) {
  const i64 p = sample::this_position();
  if (p >= positions) return;
  i64 node;
  if (p < targets) {
    node = nodes[p];
    if (node < 0) return;
  } else {
    const i64 edge = p - targets, total = ends[targets - 1];
    if (edge >= total) return;
    const i64 target = sample::target_of(edge, ends, targets);
    const i64 start = target == 0 ? 0 : ends[target - 1];
    const i64 v = nodes[target], begin = indptr[v];
    const i64 spare = indptr[v + 1] - begin - (ends[target] - start);
    i64 place = edge - start;
    if (spare > 0) {
      const u64 number = static_cast<u64>(v + 1);
      place = sample::Floyd{sample::mix(key + sample::kGolden * number), spare}.taken(place);
    }
    place += begin;
    node = index_bytes == 4 ? static_cast<const int*>(indices)[place]
                            : static_cast<const i64*>(indices)[place];
    edges[edge] = node;
    edges[total + edge] = target;
  }
  atomicMin(first + node, base + p);
}

// Whether a position is the first that names its node; of each target its own place is.
extern "C" __global__ void mark_kernel(i64 positions, const i64* nodes, const i64* ends,
                                       i64 targets, const i64* sources, const i64* first, i64 base,
                                       i64* marks) {
  const i64 p = sample::this_position();
  if (p >= positions) return;
  const i64 node = sample::node_at(p, nodes, ends, targets, sources);
  marks[p] = node >= 0 && first[node] == base + p;
}

// Sources become local numbers: how many nodes were named before theirs. `known` gets the nodes in
// that order, and -1 behind them; `sizes` the numbers of edges and of nodes.
extern "C" __global__ void relabel_kernel(i64 positions, const i64* nodes, const i64* ends,
                                          i64 targets, i64* sources, const i64* first, i64 base,
                                          const i64* ranks, i64* known, i64* sizes) {
  const i64 p = sample::this_position();
  if (p >= positions) return;
  if (p == 0) {
    sizes[0] = ends[targets - 1];
    sizes[1] = ranks[positions - 1];
  }
  if (p >= ranks[positions - 1]) known[p] = -1;
  const i64 node = sample::node_at(p, nodes, ends, targets, sources);
  if (node < 0) return;
  const i64 place = first[node] - base;
  const i64 local = ranks[place] - 1;
  if (place == p) known[local] = node;
  if (p >= targets) sources[p - targets] = local;
}
