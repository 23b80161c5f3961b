// The loop of unordered_checksum(), compiled once per instruction set: internal to each file that includes it.
#pragma once
#include <cstdint>
#include <cstring>

namespace ringdp::kernels {
namespace {

// A bijection of the word: the factor is odd, so the low half of the product determines it. The shift makes it
// non-linear, so changes that cancel in a sum of words do not cancel here.
template <class Word>
uint64_t sum_of_mixed(const unsigned char* at, int64_t words) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < words; ++i) {
    Word word;
    std::memcpy(&word, at + i * static_cast<int64_t>(sizeof word), sizeof word);
    const uint64_t product = uint64_t{word ^ 0x9e3779b9u} * 0x85ebca77u;
    sum += product ^ (product >> 29);
  }
  return sum;
}

uint64_t sum_by_size(const void* elements, int64_t count, int64_t element_bytes) {
  const auto* const at = static_cast<const unsigned char*>(elements);
  if (element_bytes == 1) return sum_of_mixed<uint8_t>(at, count);
  if (element_bytes == 2) return sum_of_mixed<uint16_t>(at, count);
  return sum_of_mixed<uint32_t>(at, count * (element_bytes / 4));
}

}  // namespace
}  // namespace ringdp::kernels
