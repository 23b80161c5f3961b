// Plain values of one size that ranks tell each other through a collective of the host: as bytes, and back.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace ringdp::gpu {

template <class Value>
std::string to_bytes(const Value& value) {
  static_assert(std::is_trivially_copyable_v<Value>);
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

// Blank where these bytes are none of a Value.
template <class Value>
Value told(const std::string& bytes) {
  static_assert(std::is_trivially_copyable_v<Value>);
  Value value;
  if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// A text that may be cut off.
template <size_t kSize>
void put(char (&to)[kSize], const std::string& text) {
  std::strncpy(to, text.c_str(), kSize - 1);
}
template <size_t kSize>
void end_text(char (&text)[kSize]) {
  text[kSize - 1] = '\0';
}

// Everybody's, whose field `build` says that it means the same there; else Error(kMismatch) names the rank and `what` is
// wrong with it.
template <class Card>
std::vector<Card> cards_told(const std::vector<std::string>& bytes, uint32_t build, const std::string& what) {
  std::vector<Card> cards;
  for (const std::string& one : bytes) {
    Card card = told<Card>(one);
    if (card.build != build) {
      const int rank = static_cast<int>(cards.size());
      throw Error(ErrorKind::kMismatch,
                  "rank " + std::to_string(rank) + " runs another build of ringdp: " + what +
                      "; install the same on all ranks",
                  rank);
    }
    end_text(card.why_not);
    cards.push_back(card);
  }
  return cards;
}

}  // namespace ringdp::gpu
