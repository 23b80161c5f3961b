#include "kernels/copy.h"

#include <cstdint>
#include <cstring>

namespace ringdp::kernels {
namespace {

constexpr uintptr_t kShortBytes = 2048;  // glibc's own vector loops copy these
constexpr uintptr_t kApartBytes = 16;    // multiples of it are not slow

bool suits_memmove(const void* src, const void* dst, int64_t bytes) {
  const auto a = reinterpret_cast<uintptr_t>(src), b = reinterpret_cast<uintptr_t>(dst);
  const uintptr_t distance = a < b ? b - a : a - b, size = static_cast<uintptr_t>(bytes);
  return size < kShortBytes || distance < size || distance % kApartBytes == 0;
}

}  // namespace

void copy(const void* src, void* dst, int64_t bytes) {
  if (suits_memmove(src, dst, bytes)) {
    std::memmove(dst, src, static_cast<size_t>(bytes));
    return;
  }
  using Unaligned __attribute__((vector_size(128), aligned(1), may_alias)) = char;
  const auto* from = static_cast<const char*>(src);
  auto* to = static_cast<char*>(dst);
  const char* const end = from + bytes;
  for (; end - from >= static_cast<int64_t>(sizeof(Unaligned)); from += sizeof(Unaligned), to += sizeof(Unaligned)) {
    *reinterpret_cast<Unaligned*>(to) = *reinterpret_cast<const Unaligned*>(from);
    asm volatile("" ::: "memory");  // keeps compilers from turning this loop into a call of memcpy
  }
  std::memcpy(to, from, static_cast<size_t>(end - from));
}

}  // namespace ringdp::kernels
