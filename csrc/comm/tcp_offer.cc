#include "comm/tcp_offer.h"

#include <charconv>

namespace ringdp::comm {
namespace {

constexpr int kMostStreams = 64;

std::optional<int> number_from_text(const std::string& text, int most) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, number);
  if (failure != std::errc() || stop != end || number < 1 || number > most) return std::nullopt;
  return number;
}

}  // namespace

std::string to_text(const TcpOffer& offer) {
  return offer.address.host() + " " + std::to_string(offer.address.port()) + " " + std::to_string(offer.streams);
}

std::optional<TcpOffer> tcp_offer_from_text(const std::string& text) {
  const size_t first = text.find(' ');
  const size_t second = first == std::string::npos ? first : text.find(' ', first + 1);
  if (second == std::string::npos) return std::nullopt;
  const auto port = number_from_text(text.substr(first + 1, second - first - 1), 65535);
  const auto streams = number_from_text(text.substr(second + 1), kMostStreams);
  const auto address = port ? transport::SocketAddress::parse(text.substr(0, first), *port) : std::nullopt;
  if (!address || !streams) return std::nullopt;
  const TcpOffer offer{*address, *streams};
  // "007" parses but is not what to_text() writes.
  return to_text(offer) == text ? std::optional(offer) : std::nullopt;
}

}  // namespace ringdp::comm
