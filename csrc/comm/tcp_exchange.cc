#include "comm/tcp_exchange.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "comm/handshake.h"
#include "transport/tcp/interface.h"
#include "transport/tcp/tcp_socket.h"

namespace ringdp::comm {
namespace {

using transport::Channel;
using transport::SocketAddress;

constexpr Channel kChannels[] = {Channel::kControl, Channel::kBulk, Channel::kMessages};
constexpr char kWhat[] = "address";

// "10.0.0.1 4711", as published.
std::string to_text(const SocketAddress& address) { return address.host() + " " + std::to_string(address.port()); }

std::optional<SocketAddress> address_from_text(const std::string& text) {
  const size_t space = text.find(' ');
  if (space == std::string::npos) return std::nullopt;
  const char* end = text.data() + text.size();
  int port = 0;
  const auto [stop, failure] = std::from_chars(text.data() + space + 1, end, port);
  if (failure != std::errc() || stop != end || port == 0) return std::nullopt;
  return SocketAddress::parse(text.substr(0, space), port);
}

transport::Interface pick_interface(const Settings& settings, bool one_host) {
  transport::InterfaceWish wish{settings.socket_ifname, std::nullopt, one_host};
  const auto master = read_env("MASTER_ADDR");
  // Looking up a name can be slow, so only when the answer counts.
  if (wish.name.empty() && !one_host && master) wish.route = transport::route_to(*master);
  return transport::choose_interface(transport::list_interfaces(), wish);
}

void keep(TcpExchange& result, int rank, Channel channel, UniqueFd socket, const Settings& settings) {
  TcpExchange::Connection& connection = result.connections[rank];
  connection.address = SocketAddress::connected_to(socket.get()).text();
  if (channel == Channel::kControl) {
    transport::tune_for_control(socket.get(), settings.unreachable_ms);
    connection.control = std::move(socket);
  } else {
    transport::tune_for_bulk(socket.get());
    (channel == Channel::kBulk ? connection.bulk : connection.messages) = std::move(socket);
  }
}

void connect_to_lower(TcpExchange& result, const Session& session, const std::vector<int>& lower, const Admit& admit) {
  const std::vector<std::string> texts = session.roll_call.gather(kWhat, lower);
  for (size_t i = 0; i < lower.size(); ++i) {
    const auto address = address_from_text(texts[i]);
    if (!address) throw_malformed(session.roll_call, kWhat, lower[i]);
    const Open open = [&](const transport::Patience& patience) { return transport::connect_tcp(*address, patience); };
    for (const Channel channel : kChannels) {
      keep(result, lower[i], channel, introduce(session, lower[i], channel, open, admit), session.settings);
    }
  }
}

void accept_from_higher(TcpExchange& result, const Session& session, int listener, const std::vector<int>& higher,
                        const Admit& admit) {
  std::vector<transport::Hello> expected;
  for (const int rank : higher) {
    for (const Channel channel : kChannels) expected.push_back(session.hello(rank, session.rank(), channel));
  }
  for (auto& arrival : receive(session, listener, std::move(expected), admit)) {
    keep(result, arrival.hello.from, arrival.hello.channel, std::move(arrival.socket), session.settings);
  }
}

}  // namespace

TcpExchange exchange_tcp(const Session& session, const std::vector<int>& peers, bool one_host) {
  const transport::Interface chosen = pick_interface(session.settings, one_host);
  const UniqueFd listener = transport::listen_on(chosen.address);
  session.roll_call.publish(kWhat, to_text(SocketAddress::bound_to(listener.get())));

  TcpExchange result;
  result.address = chosen.address.host() + " (" + chosen.name + ")";
  const auto first_higher = std::lower_bound(peers.begin(), peers.end(), session.rank());
  // The token in the hello is all there is to check over TCP.
  const Admit admit = [](int, int) { return true; };
  connect_to_lower(result, session, {peers.begin(), first_higher}, admit);
  accept_from_higher(result, session, listener.get(), {first_higher, peers.end()}, admit);
  return result;
}

}  // namespace ringdp::comm
