#include "base/text.h"

#include <cstdint>

namespace ringdp {
namespace {

// Bytes of the character that `text` begins with: UTF-8 as RFC 3629 has it, no C0, DEL or C1; 0 when it is none.
size_t size_of_character(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const auto ends_in = [&](size_t count) {
    for (size_t i = 1; i <= count; ++i) {
      if ((byte(i) & 0xC0) != 0x80) return false;
    }
    return true;
  };
  const uint8_t first = byte(0);
  const uint32_t start = static_cast<uint32_t>(first << 8) | byte(1);
  if (first < 0x80) return (first >= 0x20 && first != 0x7F) || first == '\n' ? 1 : 0;
  if (start >= 0xC2A0 && first <= 0xDF) return ends_in(1) ? 2 : 0;
  const bool surrogate = first == 0xED && byte(1) >= 0xA0;
  if (start >= 0xE0A0 && first <= 0xEF && !surrogate) return ends_in(2) ? 3 : 0;
  if (start >= 0xF090 && start < 0xF490) return ends_in(3) ? 4 : 0;
  return 0;
}

std::string escaped(char c) {
  constexpr char kDigits[] = "0123456789abcdef";
  const auto byte = static_cast<uint8_t>(c);
  return {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
}

}  // namespace

std::string printable(std::string_view text, size_t most) {
  std::string shown;
  while (!text.empty()) {
    const size_t size = size_of_character(text);
    const std::string next = size > 0 ? std::string(text.substr(0, size)) : escaped(text[0]);
    if (shown.size() + next.size() > most) break;
    shown += next;
    text.remove_prefix(size > 0 ? size : 1);
  }
  return shown;
}

}  // namespace ringdp
