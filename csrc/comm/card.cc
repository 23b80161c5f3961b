#include "comm/card.h"

#include <charconv>
#include <sstream>

#include "transport/unix_socket.h"

namespace ringdp::comm {
namespace {

constexpr char kNoSocket[] = "-";
constexpr size_t kLongestCard = 2048;

}  // namespace

std::string shared_settings(const Settings& settings) {
  std::string text;
  for (const char* field : {"transport", "algorithm", "order", "wire", "check", "segment_bytes", "slot_bytes", "link_bytes", "heap_bytes",
                            "window_bytes", "tcp_streams"}) {
    text += (text.empty() ? "" : " ") + std::string(field) + "=" + get_field(settings, field);
  }
  return text;
}

std::string to_text(const Card& card) {
  return transport::to_line(card.identity) + "\n" + (card.socket_name.empty() ? kNoSocket : card.socket_name) + "\n" +
         std::to_string(card.heap_bytes) + "\n" + ringdp::to_text(card.thresholds) + "\n" + card.settings;
}

std::optional<Card> card_from_text(const std::string& text) {
  if (text.size() > kLongestCard) return std::nullopt;
  std::istringstream lines(text);
  std::string line, socket_name, heap, limits, settings;
  if (!std::getline(lines, line) || !std::getline(lines, socket_name)) return std::nullopt;
  if (!std::getline(lines, heap) || !std::getline(lines, limits)) return std::nullopt;
  const auto identity = transport::identity_from_line(line);
  if (!identity || (socket_name != kNoSocket && !transport::is_socket_name(socket_name))) return std::nullopt;
  int64_t heap_bytes = 0;
  const auto [end, error] = std::from_chars(heap.data(), heap.data() + heap.size(), heap_bytes);
  if (error != std::errc() || end != heap.data() + heap.size() || heap_bytes < 0) return std::nullopt;
  const auto thresholds = thresholds_from_text(limits);
  if (!thresholds) return std::nullopt;
  std::getline(lines, settings, '\0');
  return Card{*identity, socket_name == kNoSocket ? "" : socket_name, settings, *thresholds, heap_bytes};
}

}  // namespace ringdp::comm
