#include "kernels/checksum.h"

#include <bit>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <string>

#include "base/error.h"
#include "kernels/dispatch.h"

namespace ringdp::kernels {
namespace {

constexpr uint64_t kPrime = 0x9e3779b185ebca87u;  // odd, so that multiplying loses nothing
constexpr size_t kLanes = 8;                      // chains that run side by side hide the latency of each
constexpr size_t kBlock = kLanes * sizeof(uint64_t);

// A bijection of `state` and of `word`, so states that differ stay different. The rotation moves high bits down, where
// the next multiplication spreads them.
inline uint64_t mixed(uint64_t state, uint64_t word) { return std::rotl((state ^ word) * kPrime, 29); }

inline uint64_t word_at(const unsigned char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

}  // namespace

uint64_t unordered_checksum(const void* elements, int64_t count, int64_t element_bytes) {
  if (element_bytes == 1 || element_bytes == 2 || (element_bytes > 0 && element_bytes % 4 == 0)) {
    return supported_instruction_sets().front().unordered_checksum(elements, count, element_bytes);
  }
  throw Error(ErrorKind::kInvalidArgument, "elements of " + std::to_string(element_bytes) + " bytes have no checksum");
}

uint64_t combine(uint64_t so_far, uint64_t next) {
  const uint64_t sum = mixed(so_far, next);
  return sum != 0 ? sum : 1;
}

uint64_t checksum(const void* bytes, size_t size) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  const auto* const end = at + size;
  uint64_t a = 1, b = 2, c = 3, d = 4, e = 5, f = 6, g = 7, h = 8;
  const auto take = [&](const unsigned char* block) {
    a = mixed(a, word_at(block));
    b = mixed(b, word_at(block + 8));
    c = mixed(c, word_at(block + 16));
    d = mixed(d, word_at(block + 24));
    e = mixed(e, word_at(block + 32));
    f = mixed(f, word_at(block + 40));
    g = mixed(g, word_at(block + 48));
    h = mixed(h, word_at(block + 56));
  };
  for (; end - at >= static_cast<std::ptrdiff_t>(kBlock); at += kBlock) take(at);
  if (at != end) {
    unsigned char last[kBlock] = {};
    std::memcpy(last, at, end - at);
    take(last);
  }
  uint64_t sum = mixed(kPrime, size);
  for (const uint64_t lane : {a, b, c, d, e, f, g, h}) sum = mixed(sum, lane);
  return sum != 0 ? sum : 1;
}

}  // namespace ringdp::kernels
