// How driver.cpp starts a kernel; comes after its source. Each macro KERNEL_name, such as
// KERNEL_gather_kernel, says that the kernel is there.

#include <utility>

template <class Value> static Value value(void** values, size_t place) {
  return *static_cast<Value*>(values[place]);
}

template <class... Arguments, size_t... place>
static void every_thread(void (*kernel)(Arguments...), void** values, unsigned blocks, unsigned x,
                         unsigned y, std::index_sequence<place...>) {
  blockDim = {x, y, 1};
  gridDim = {blocks, 1, 1};
  for (unsigned block = 0; block < blocks; ++block) {
    blockIdx = {block, 0, 0};
    for (unsigned j = 0; j < y; ++j) {
      for (unsigned i = 0; i < x; ++i) {
        threadIdx = {i, j, 0};
        kernel(value<Arguments>(values, place)...);
      }
    }
  }
}

template <class... Arguments>
static void run(void (*kernel)(Arguments...), void** values, unsigned blocks, unsigned x,
                unsigned y) {
  every_thread(kernel, values, blocks, x, y, std::index_sequence_for<Arguments...>());
}

template <class... Arguments> static const int* sizes(void (*)(Arguments...)) {
  static const int all[] = {sizeof(Arguments)..., 0};
  return all;
}

// What driver.cpp looks for: the bytes of each argument, and the kernel. `allowed_name` is beside it.
#define KERNEL(name)                                                            \
  const int* sizes_##name() { return sizes(name); }                             \
  void run_##name(void** values, unsigned blocks, unsigned x, unsigned y) {     \
    run(name, values, blocks, x, y);                                            \
  }

using Visible = bool (*)(const void*, size_t);

extern "C" {
#if defined(KERNEL_gather_kernel)
KERNEL(gather_kernel)
int allowed_gather_kernel(void** v, Visible visible) {
  const size_t ids = value<long long>(v, 4), rows = value<long long>(v, 5);
  const size_t stride = value<long long>(v, 6), row_bytes = value<int>(v, 7);
  const bool scattered = value<void*>(v, 3) != nullptr, reports = value<void*>(v, 8) != nullptr;
  if (!visible(value<void*>(v, 1), ids * sizeof(GatherId))) return false;
  for (size_t p = 0; p < ids; ++p) {  // rows may lie in several memories
    const auto id = static_cast<size_t>(value<const GatherId*>(v, 1)[p]);  // bad ones are not read
    if (id < rows && !visible(value<const char*>(v, 0) + id * stride, row_bytes)) return false;
  }
  return visible(value<void*>(v, 2), scattered ? 1 : ids * row_bytes) &&
         (!scattered || visible(value<void*>(v, 3), ids * 8)) &&
         (!reports || visible(value<void*>(v, 8), 8));
}
#endif
#if defined(KERNEL_read_kernel)
KERNEL(read_kernel)
int allowed_read_kernel(void** v, Visible visible) {
  return visible(value<void*>(v, 0), 16 * value<long long>(v, 1));
}
#endif
#if defined(KERNEL_chase_kernel)
KERNEL(chase_kernel)
int allowed_chase_kernel(void** v, Visible visible) {
  return visible(value<unsigned long long*>(v, 0) + value<unsigned long long>(v, 1), 8) &&
         visible(value<void*>(v, 3), 8);
}
#endif
#if defined(KERNEL_lookup_kernel)
KERNEL(lookup_kernel)
int allowed_lookup_kernel(void** v, Visible visible) {
  const size_t count = value<long long>(v, 0), bytes = value<long long>(v, 2);
  return visible(value<void*>(v, 1), count * bytes) &&
         visible(value<void*>(v, 4), 4 * value<long long>(v, 3)) &&
         visible(value<void*>(v, 7), 8 * count) && visible(value<void*>(v, 8), count) &&
         visible(value<void*>(v, 9), 8) && visible(value<void*>(v, 10), 8);
}
#endif
#if defined(KERNEL_draw_kernel)
static bool words(Visible visible, void** v, size_t place, size_t count) {
  return count == 0 || visible(value<void*>(v, place), 8 * count);
}

KERNEL(count_kernel)
int allowed_count_kernel(void** v, Visible visible) {
  const size_t positions = value<long long>(v, 0);
  for (size_t p = 0; words(visible, v, 2, positions) && p < positions; ++p) {
    const long long node = value<const long long*>(v, 2)[p];
    if (node >= 0 && !visible(value<const long long*>(v, 1) + node, 16)) return false;
  }
  return words(visible, v, 2, positions) && words(visible, v, 4, positions);
}
KERNEL(draw_kernel)
int allowed_draw_kernel(void** v, Visible visible) {
  const size_t positions = value<long long>(v, 0), targets = value<long long>(v, 6);
  if (!words(visible, v, 4, targets) || !words(visible, v, 5, targets)) return false;
  for (size_t p = 0; p < targets; ++p) {
    const long long node = value<const long long*>(v, 4)[p];
    if (node < 0) continue;
    const long long* list = value<const long long*>(v, 1) + node;
    if (!visible(list, 16) || !visible(value<const long long*>(v, 9) + node, 8)) return false;
    const size_t bytes = value<long long>(v, 3), count = list[1] - list[0];
    const char* lists = value<const char*>(v, 2);
    if (count != 0 && !visible(lists + list[0] * bytes, count * bytes)) return false;
  }
  return words(visible, v, 8, 2 * (positions - targets));
}
static bool named(void** v, Visible visible) {
  const size_t positions = value<long long>(v, 0), targets = value<long long>(v, 3);
  return words(visible, v, 1, targets) && words(visible, v, 2, targets) &&
         words(visible, v, 4, 2 * (positions - targets)) && words(visible, v, 5, 1) &&
         words(visible, v, 7, positions);
}
KERNEL(mark_kernel)
int allowed_mark_kernel(void** v, Visible visible) { return named(v, visible); }
KERNEL(relabel_kernel)
int allowed_relabel_kernel(void** v, Visible visible) {
  const size_t positions = value<long long>(v, 0);
  return named(v, visible) && words(visible, v, 8, positions) && words(visible, v, 9, 2);
}
#endif
}
