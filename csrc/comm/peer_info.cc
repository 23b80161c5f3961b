#include "comm/peer_info.h"

#include <charconv>
#include <sstream>

#include "transport/unix_socket.h"

namespace ringdp::comm {
namespace {

constexpr char kNone[] = "-";
constexpr char kTitle[] = "ringdp";
constexpr size_t kLongestInfo = 2048;

template <class Integer>
std::optional<Integer> whole_number(const std::string& text) {
  Integer number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end && number >= 0 ? std::optional<Integer>(number) : std::nullopt;
}

constexpr int kMostStreams = 64;
constexpr size_t kLongestEndpoint = 128;

bool lies_between(int least, const std::optional<int>& number, int most) {
  return number && *number >= least && *number <= most;
}

std::string to_text(const Secret& secret) {
  return transport::to_hex(reinterpret_cast<const std::byte*>(&secret.group), sizeof secret.group) +
         transport::to_hex(secret.token.data(), secret.token.size());
}

std::optional<Secret> secret_from_text(const std::string& text) {
  constexpr size_t kGroupDigits = 2 * sizeof(uint64_t);
  Secret secret;
  const bool is_whole = text.size() == kGroupDigits + 2 * transport::kTokenBytes &&
                        transport::from_hex(text.substr(0, kGroupDigits), reinterpret_cast<std::byte*>(&secret.group),
                                            sizeof secret.group) &&
                        transport::from_hex(text.substr(kGroupDigits), secret.token.data(), secret.token.size());
  return is_whole ? std::optional(secret) : std::nullopt;
}

}  // namespace

std::string shared_settings(const Settings& settings) {
  std::string text;
  for (const char* field : {"transport", "algorithm", "order", "wire", "check", "segment_bytes", "slot_bytes",
                            "link_bytes", "heap_bytes", "window_bytes", "blocks", "tcp_streams"}) {
    text += (text.empty() ? "" : " ") + std::string(field) + "=" + get_field(settings, field);
  }
  // The files may differ between hosts.
  return text + " tls=" + (settings.asks_for_tls() ? "on" : "off");
}

Secret Secret::random() {
  Secret secret;
  transport::fill_random(&secret.group, sizeof secret.group);
  transport::fill_random(secret.token.data(), secret.token.size());
  return secret;
}

std::string to_text(const PeerInfo& info) {
  std::string text =
      std::string(kTitle) + " " + std::to_string(transport::kProtocolVersion) + " " + std::to_string(info.world);
  for (const std::string& line :
       {transport::to_line(info.identity), info.socket_name.empty() ? kNone : info.socket_name,
        info.secret ? to_text(*info.secret) : kNone, info.endpoint ? to_text(*info.endpoint) : kNone,
        std::to_string(info.heap_bytes), ringdp::to_text(info.thresholds), info.settings}) {
    text += "\n" + line;
  }
  return text;
}

std::optional<PeerInfo> peer_info_from_text(const std::string& text) {
  if (text.size() > kLongestInfo || protocol_of_peer_info(text) != transport::kProtocolVersion) return std::nullopt;
  std::istringstream lines(text);
  std::string first, line, socket_name, secret, endpoint, heap, limits, settings;
  for (std::string* part : {&first, &line, &socket_name, &secret, &endpoint, &heap, &limits}) {
    if (!std::getline(lines, *part)) return std::nullopt;
  }
  const auto world = whole_number<int>(first.substr(first.rfind(' ') + 1));
  const auto identity = transport::identity_from_line(line);
  if (!world || !identity || (socket_name != kNone && !transport::is_socket_name(socket_name))) return std::nullopt;
  const auto heap_bytes = whole_number<int64_t>(heap);
  const auto thresholds = thresholds_from_text(limits);
  if (!heap_bytes || !thresholds) return std::nullopt;
  std::getline(lines, settings, '\0');
  const PeerInfo info{*identity,
                      socket_name == kNone ? "" : socket_name,
                      settings,
                      *thresholds,
                      *heap_bytes,
                      *world,
                      secret_from_text(secret),
                      tcp_endpoint_from_text(endpoint)};
  // "007" parses but is not what to_text() writes.
  return to_text(info) == text ? std::optional(info) : std::nullopt;
}

std::optional<uint32_t> protocol_of_peer_info(const std::string& text) {
  std::istringstream words(text.substr(0, kLongestInfo));
  std::string title, protocol;
  words >> title >> protocol;
  return title == kTitle ? whole_number<uint32_t>(protocol) : std::nullopt;
}

std::string to_text(const TcpEndpoint& endpoint) {
  return endpoint.address.host() + " " + std::to_string(endpoint.address.port()) + " " +
         std::to_string(endpoint.streams) + " " + std::to_string(endpoint.store_ms);
}

std::optional<TcpEndpoint> tcp_endpoint_from_text(const std::string& text) {
  std::istringstream words(text.substr(0, kLongestEndpoint));
  std::string host, port, streams, store_ms;
  words >> host >> port >> streams >> store_ms;
  const auto port_number = whole_number<int>(port), count = whole_number<int>(streams),
             ms = whole_number<int>(store_ms);
  if (!lies_between(1, port_number, 65535) || !lies_between(1, count, kMostStreams) || !ms) return std::nullopt;
  const auto address = transport::SocketAddress::parse(host, *port_number);
  if (!address) return std::nullopt;
  const TcpEndpoint endpoint{*address, *count, *ms};
  // "007" parses but is not what to_text() writes.
  return to_text(endpoint) == text ? std::optional(endpoint) : std::nullopt;
}

}  // namespace ringdp::comm
