#include "comm/tcp_exchange.h"

#include <algorithm>
#include <optional>

#include "comm/handshake.h"
#include "comm/tcp_offer.h"
#include "transport/tcp/interface.h"
#include "transport/tcp/streams.h"
#include "transport/tcp/tcp_socket.h"

namespace ringdp::comm {
namespace {

using transport::Channel;
using transport::SocketAddress;

constexpr char kWhat[] = "address";

TcpOffer offer_of(const Session& session, int rank, const std::string& text) {
  const auto offer = tcp_offer_from_text(text);
  if (!offer) throw_malformed(session.roll_call, kWhat, rank);
  return *offer;
}

int wanted_streams(const Settings& settings, const transport::Interface& chosen) {
  if (settings.tcp_streams > 0) return static_cast<int>(settings.tcp_streams);
  return transport::streams_for(transport::interface_speed(chosen.name));
}

// One connection of a pair.
struct Line {
  Channel channel;
  uint32_t stream;
};

std::vector<Line> lines_of(int streams) {
  std::vector<Line> lines = {{Channel::kControl, 0}, {Channel::kMessages, 0}};
  for (int stream = 0; stream < streams; ++stream) lines.push_back({Channel::kBulk, static_cast<uint32_t>(stream)});
  return lines;
}

transport::Interface pick_interface(const Settings& settings, bool one_host) {
  transport::InterfaceWish wish{settings.socket_ifname, std::nullopt, one_host};
  const auto master = read_env("MASTER_ADDR");
  // Looking up a name can be slow, so only when the answer counts.
  if (wish.name.empty() && !one_host && master) wish.route = transport::route_to(*master);
  return transport::choose_interface(transport::list_interfaces(), wish);
}

// Of a peer that may have ended since it said hello.
void keep(int rank, TcpExchange::Connection& connection, const Line& line, transport::Socket socket,
          const Settings& settings) {
  try {
    connection.address = SocketAddress::connected_to(socket.get()).text();
  } catch (const Error& error) {
    throw Error(ErrorKind::kPeerLost,
                "rank " + std::to_string(rank) + " closed its connection while the ranks met (" + error.what() +
                    "); see its own output",
                rank);
  }
  if (line.channel == Channel::kControl) {
    transport::tune_for_control(socket.get(), settings.unreachable_ms);
    connection.control = std::move(socket);
    return;
  }
  transport::tune_for_bulk(socket.get());
  if (line.channel == Channel::kMessages) {
    connection.messages = std::move(socket);
    return;
  }
  if (connection.bulk.size() <= line.stream) connection.bulk.resize(line.stream + 1);
  connection.bulk[line.stream] = std::move(socket);
}

// What everybody else offers, by rank, with the number of streams that the pair will have.
std::map<int, TcpOffer> exchange_offers(const Session& session, const TcpOffer& own, const std::vector<int>& peers) {
  session.roll_call.publish(kWhat, to_text(own));
  const std::vector<std::string> texts = session.roll_call.gather(kWhat, peers);
  std::map<int, TcpOffer> offers;
  for (size_t i = 0; i < peers.size(); ++i) {
    TcpOffer offer = offer_of(session, peers[i], texts[i]);
    offer.streams = std::min(offer.streams, own.streams);
    offers.emplace(peers[i], offer);
  }
  return offers;
}

}  // namespace

TcpExchange exchange_tcp(const Session& session, const std::vector<int>& peers, bool one_host) {
  const transport::Interface chosen = pick_interface(session.settings, one_host);
  const UniqueFd listener = transport::listen_on(chosen.address);
  const TcpOffer own{SocketAddress::bound_to(listener.get()), wanted_streams(session.settings, chosen)};

  TcpExchange result;
  result.address = chosen.address.host() + " (" + chosen.name + ")";
  // The token in the hello is all there is to check over TCP.
  const Admit admit = [](int, int) { return true; };
  std::vector<transport::Hello> expected;
  for (const auto& [rank, offer] : exchange_offers(session, own, peers)) {
    const Open open = [&session, &to = offer.address, rank = rank](const transport::Patience& p) {
      UniqueFd fd = transport::connect_tcp(to, p);
      const std::string peer = "rank " + std::to_string(rank) + " at " + to.text();
      auto tls = session.tls ? session.tls->connect(fd.get(), peer) : nullptr;
      return transport::Socket(std::move(fd), std::move(tls));
    };
    for (const Line& line : lines_of(offer.streams)) {
      if (rank > session.rank()) {
        expected.push_back(session.hello(rank, session.rank(), line.channel, line.stream));
        continue;
      }
      transport::Socket socket = introduce(session, rank, line.channel, open, admit, line.stream);
      keep(rank, result.connections[rank], line, std::move(socket), session.settings);
    }
  }
  for (auto& arrival : receive(session, listener.get(), std::move(expected), admit, session.tls.get())) {
    const Line line{arrival.hello.channel, arrival.hello.stream};
    keep(arrival.hello.from, result.connections[arrival.hello.from], line, std::move(arrival.socket), session.settings);
  }
  return result;
}

}  // namespace ringdp::comm
