#include "comm/card.h"

#include <charconv>
#include <sstream>

#include "transport/hello.h"
#include "transport/unix_socket.h"

namespace ringdp::comm {
namespace {

constexpr char kNoSocket[] = "-";
constexpr char kTitle[] = "ringdp";
constexpr size_t kLongestCard = 2048;

template <class Integer>
std::optional<Integer> whole_number(const std::string& text) {
  Integer number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end && number >= 0 ? std::optional<Integer>(number) : std::nullopt;
}

}  // namespace

std::string shared_settings(const Settings& settings) {
  std::string text;
  for (const char* field : {"transport", "algorithm", "order", "wire", "check", "segment_bytes", "slot_bytes", "link_bytes", "heap_bytes",
                            "window_bytes", "tcp_streams"}) {
    text += (text.empty() ? "" : " ") + std::string(field) + "=" + get_field(settings, field);
  }
  // The files are each host's own affair.
  return text + " tls=" + (settings.asks_for_tls() ? "on" : "off");
}

std::string to_text(const Card& card) {
  return std::string(kTitle) + " " + std::to_string(transport::kProtocolVersion) + " " + std::to_string(card.world) + "\n" +
         transport::to_line(card.identity) + "\n" + (card.socket_name.empty() ? kNoSocket : card.socket_name) + "\n" +
         std::to_string(card.heap_bytes) + "\n" + ringdp::to_text(card.thresholds) + "\n" + card.settings;
}

std::optional<Card> card_from_text(const std::string& text) {
  if (text.size() > kLongestCard || protocol_of_card(text) != transport::kProtocolVersion) return std::nullopt;
  std::istringstream lines(text);
  std::string first, line, socket_name, heap, limits, settings;
  for (std::string* part : {&first, &line, &socket_name, &heap, &limits}) {
    if (!std::getline(lines, *part)) return std::nullopt;
  }
  const auto world = whole_number<int>(first.substr(first.rfind(' ') + 1));
  const auto identity = transport::identity_from_line(line);
  if (!world || !identity || (socket_name != kNoSocket && !transport::is_socket_name(socket_name))) return std::nullopt;
  const auto heap_bytes = whole_number<int64_t>(heap);
  const auto thresholds = thresholds_from_text(limits);
  if (!heap_bytes || !thresholds) return std::nullopt;
  std::getline(lines, settings, '\0');
  const Card card{*identity, socket_name == kNoSocket ? "" : socket_name, settings, *thresholds, *heap_bytes, *world};
  // "007" parses but is not what to_text() writes.
  return to_text(card) == text ? std::optional(card) : std::nullopt;
}

std::optional<uint32_t> protocol_of_card(const std::string& text) {
  std::istringstream words(text.substr(0, kLongestCard));
  std::string title, protocol;
  words >> title >> protocol;
  return title == kTitle ? whole_number<uint32_t>(protocol) : std::nullopt;
}

}  // namespace ringdp::comm
