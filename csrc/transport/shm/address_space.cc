#include "transport/shm/address_space.h"

#include <sys/mman.h>
#include <sys/resource.h>

namespace ringdp::transport {
namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kSmallestHeap = 64 << 20;
constexpr int64_t kShare = 8;  // all heaps of a group take at most this part of what is free: there will be other groups

bool can_reserve(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* at = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return false;
  ::munmap(at, size);
  return true;
}

// A larger memfd would not be refused but kill the process with SIGXFSZ.
bool may_have_size(int64_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
         (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur / kShare > static_cast<rlim_t>(bytes));
}

bool fits(int64_t heap, int ranks) {
  int64_t needed = 0;
  return !__builtin_mul_overflow(heap, kShare * ranks, &needed) && may_have_size(heap) && can_reserve(needed);
}

}  // namespace

int64_t reservable_heap(int64_t wanted, int ranks) {
  const int64_t enough = wanted < kSmallestHeap ? wanted : kSmallestHeap;
  int64_t heap = wanted;
  while (heap >= enough && heap > 0 && !fits(heap, ranks)) heap /= 2;
  return heap < enough ? 0 : heap / kPageBytes * kPageBytes;
}

}  // namespace ringdp::transport
