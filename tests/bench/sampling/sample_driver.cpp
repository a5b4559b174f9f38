// Runs the kernels of sample.cu on the host: one launch for each request on stdin, see host_kernels.py.
//
// A tensor gets memory of exactly its size, so AddressSanitizer sees every access outside it; a file
// is mapped. Threads run in random order: a GPU promises none.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <utility>

#include "cuda_shim.h"
#include KERNEL_FILE

using u64 = unsigned long long;

[[noreturn]] static void fail(const char* what) {
  std::fprintf(stderr, "shim driver: %s\n", what);
  std::exit(2);
}

static void read_all(void* to, size_t bytes) {
  if (bytes != 0 && std::fread(to, 1, bytes, stdin) != bytes) fail("input ended inside a launch");
}

template <class Argument> Argument as(u64 word) {
  if constexpr (std::is_pointer_v<Argument>) {
    return reinterpret_cast<Argument>(word);
  } else {
    return static_cast<Argument>(word);
  }
}

template <class... Arguments, size_t... I>
void launch(void (*kernel)(Arguments...), const std::vector<u64>& words, u64 blocks,
            std::index_sequence<I...>) {
  if (words.size() != sizeof...(Arguments)) fail("another number of arguments");
  std::vector<u64> order(blocks * blockDim.x);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(0));
  for (const u64 thread : order) {
    blockIdx.x = static_cast<unsigned>(thread / blockDim.x);
    threadIdx.x = static_cast<unsigned>(thread % blockDim.x);
    kernel(as<Arguments>(words[I])...);
  }
}

template <class... Arguments>
void launch(void (*kernel)(Arguments...), const std::vector<u64>& words, u64 blocks) {
  launch(kernel, words, blocks, std::index_sequence_for<Arguments...>());
}

static void* mapped(u64 path_bytes) {
  std::string path(path_bytes, '\0');
  read_all(path.data(), path_bytes);
  const int file = open(path.c_str(), O_RDWR);
  const off_t size = lseek(file, 0, SEEK_END);
  void* at = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_NORESERVE, file, 0);
  if (at == MAP_FAILED) fail("cannot map a file");
  return at;
}

int main() {
  u64 head[4];  // which kernel, blocks, threads of a block, arguments
  while (std::fread(head, sizeof head, 1, stdin) == 1) {
    std::vector<u64> words;
    std::vector<std::pair<std::unique_ptr<char[]>, u64>> tensors;
    for (u64 i = 0; i < head[3]; ++i) {
      u64 argument[2];  // 0 and a number; 1 and the bytes of a tensor; 2 and those of a file's path
      read_all(argument, sizeof argument);
      words.push_back(argument[1]);
      if (argument[0] == 1) {
        tensors.emplace_back(new char[argument[1]], argument[1]);
        read_all(tensors.back().first.get(), argument[1]);
        words.back() = reinterpret_cast<u64>(tensors.back().first.get());
      }
      if (argument[0] == 2) words.back() = reinterpret_cast<u64>(mapped(argument[1]));
    }
    blockDim.x = static_cast<unsigned>(head[2]);
    if (head[0] == 0) launch(count_kernel, words, head[1]);
    if (head[0] == 1) launch(draw_kernel, words, head[1]);
    if (head[0] == 2) launch(mark_kernel, words, head[1]);
    if (head[0] == 3) launch(relabel_kernel, words, head[1]);
    for (const auto& [memory, bytes] : tensors) std::fwrite(memory.get(), 1, bytes, stdout);
    std::fputc(0, stdout);  // a launch without tensors has an end, too
    std::fflush(stdout);
  }
  return 0;
}
