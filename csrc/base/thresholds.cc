#include "base/thresholds.h"

#include <charconv>

namespace ringdp {

std::string to_text(const Thresholds& thresholds) {
  std::string text;
  for (const auto& f : kThresholdFields) {
    text += (text.empty() ? "" : " ") + std::string(f.field) + "=" + std::to_string(thresholds.*f.member);
  }
  return text;
}

std::optional<Thresholds> thresholds_from_text(const std::string& text) {
  Thresholds thresholds;
  size_t at = 0;
  for (const auto& f : kThresholdFields) {
    const std::string name = (at == 0 ? "" : " ") + std::string(f.field) + "=";
    if (text.compare(at, name.size(), name) != 0) return std::nullopt;
    const char* const number = text.data() + at + name.size();
    const auto [end, error] = std::from_chars(number, text.data() + text.size(), thresholds.*f.member);
    const int64_t value = thresholds.*f.member;
    if (error != std::errc() || value < f.low || value > f.high) return std::nullopt;
    at = static_cast<size_t>(end - text.data());
  }
  // "007" parses but is not what to_text() writes.
  if (to_text(thresholds) != text) return std::nullopt;
  return thresholds;
}

}  // namespace ringdp
