#include "comm/card.h"

#include "transport/unix_socket.h"

namespace ringdp::comm {
namespace {

constexpr char kNoSocket[] = "-";
constexpr size_t kLongestCard = 2048;

}  // namespace

std::string shared_settings(const Settings& settings) {
  std::string text;
  for (const char* field : {"transport", "algorithm", "order", "wire", "segment_bytes", "slot_bytes", "link_bytes", "tcp_streams"}) {
    text += (text.empty() ? "" : " ") + std::string(field) + "=" + get_field(settings, field);
  }
  return text;
}

std::string to_text(const Card& card) {
  return transport::to_line(card.identity) + "\n" + (card.socket_name.empty() ? kNoSocket : card.socket_name) + "\n" +
         card.settings;
}

std::optional<Card> card_from_text(const std::string& text) {
  const size_t first = text.find('\n');
  const size_t second = first == std::string::npos ? first : text.find('\n', first + 1);
  if (second == std::string::npos || text.size() > kLongestCard) return std::nullopt;
  const auto identity = transport::identity_from_line(text.substr(0, first));
  const std::string socket_name = text.substr(first + 1, second - first - 1);
  if (!identity || (socket_name != kNoSocket && !transport::is_socket_name(socket_name))) return std::nullopt;
  return Card{*identity, socket_name == kNoSocket ? "" : socket_name, text.substr(second + 1)};
}

}  // namespace ringdp::comm
