// How driver.cpp starts a kernel; comes after its source. One of KERNEL_gather_kernel,
// KERNEL_read_kernel and KERNEL_chase_kernel says which it is.

template <class Kernel>
static void every_thread(unsigned blocks, unsigned x, unsigned y, Kernel kernel) {
  blockDim = {x, y, 1};
  gridDim = {blocks, 1, 1};
  for (unsigned block = 0; block < blocks; ++block) {
    blockIdx = {block, 0, 0};
    for (unsigned j = 0; j < y; ++j) {
      for (unsigned i = 0; i < x; ++i) {
        threadIdx = {i, j, 0};
        kernel();
      }
    }
  }
}

template <class Value> static Value value(void** values, int place) {
  return *static_cast<Value*>(values[place]);
}
using Visible = bool (*)(const void*, size_t);

extern "C" {
#if defined(KERNEL_gather_kernel)
int sizes_gather_kernel[] = {8, 8, 8, 8, 8, 8, 8, 4, 8, 0};
void run_gather_kernel(void** v, unsigned blocks, unsigned x, unsigned y) {
  every_thread(blocks, x, y, [v] {
    gather_kernel(value<const char*>(v, 0), value<const GatherId*>(v, 1), value<char*>(v, 2),
                  value<const long long*>(v, 3), value<long long>(v, 4), value<long long>(v, 5),
                  value<long long>(v, 6), value<int>(v, 7), value<unsigned long long*>(v, 8));
  });
}
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
#elif defined(KERNEL_read_kernel)
int sizes_read_kernel[] = {8, 8, 8, 0};
void run_read_kernel(void** v, unsigned blocks, unsigned x, unsigned y) {
  every_thread(blocks, x, y, [v] {
    read_kernel(value<const uint4*>(v, 0), value<long long>(v, 1), value<unsigned*>(v, 2));
  });
}
int allowed_read_kernel(void** v, Visible visible) {
  return visible(value<void*>(v, 0), 16 * value<long long>(v, 1));
}
#elif defined(KERNEL_chase_kernel)
int sizes_chase_kernel[] = {8, 8, 4, 8, 0};
void run_chase_kernel(void** v, unsigned blocks, unsigned x, unsigned y) {
  every_thread(blocks, x, y, [v] {
    chase_kernel(value<const unsigned long long*>(v, 0), value<unsigned long long>(v, 1),
                 value<int>(v, 2), value<unsigned long long*>(v, 3));
  });
}
int allowed_chase_kernel(void** v, Visible visible) {
  return visible(value<unsigned long long*>(v, 0) + value<unsigned long long>(v, 1), 8) &&
         visible(value<void*>(v, 3), 8);
}
#endif
}
