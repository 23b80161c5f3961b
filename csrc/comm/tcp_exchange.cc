#include "comm/tcp_exchange.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "comm/handshake.h"
#include "transport/tcp/interface.h"
#include "transport/tcp/streams.h"
#include "transport/tcp/tcp_socket.h"

namespace ringdp::comm {
namespace {

using transport::Channel;
using transport::SocketAddress;

constexpr char kWhat[] = "address";
constexpr int kMostStreams = 64;

// What a rank publishes: where it listens, and how many streams it wants.
struct Offer {
  SocketAddress address;
  int streams = 1;
};

// "10.0.0.1 4711 4".
std::string to_text(const Offer& offer) {
  return offer.address.host() + " " + std::to_string(offer.address.port()) + " " + std::to_string(offer.streams);
}

std::optional<int> number_from_text(const std::string& text, int most) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, number);
  if (failure != std::errc() || stop != end || number < 1 || number > most) return std::nullopt;
  return number;
}

std::optional<Offer> offer_from_text(const std::string& text) {
  const size_t first = text.find(' ');
  const size_t second = first == std::string::npos ? first : text.find(' ', first + 1);
  if (second == std::string::npos) return std::nullopt;
  const auto port = number_from_text(text.substr(first + 1, second - first - 1), 65535);
  const auto streams = number_from_text(text.substr(second + 1), kMostStreams);
  const auto address = port ? SocketAddress::parse(text.substr(0, first), *port) : std::nullopt;
  if (!address || !streams) return std::nullopt;
  return Offer{*address, *streams};
}

Offer offer_of(const Session& session, int rank, const std::string& text) {
  const auto offer = offer_from_text(text);
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
std::map<int, Offer> exchange_offers(const Session& session, const Offer& own, const std::vector<int>& peers) {
  session.roll_call.publish(kWhat, to_text(own));
  const std::vector<std::string> texts = session.roll_call.gather(kWhat, peers);
  std::map<int, Offer> offers;
  for (size_t i = 0; i < peers.size(); ++i) {
    Offer offer = offer_of(session, peers[i], texts[i]);
    offer.streams = std::min(offer.streams, own.streams);
    offers.emplace(peers[i], offer);
  }
  return offers;
}

}  // namespace

TcpExchange exchange_tcp(const Session& session, const std::vector<int>& peers, bool one_host) {
  const transport::Interface chosen = pick_interface(session.settings, one_host);
  const UniqueFd listener = transport::listen_on(chosen.address);
  const Offer own{SocketAddress::bound_to(listener.get()), wanted_streams(session.settings, chosen)};

  TcpExchange result;
  result.address = chosen.address.host() + " (" + chosen.name + ")";
  // The token in the hello is all there is to check over TCP.
  const Admit admit = [](int, int) { return true; };
  std::vector<transport::Hello> expected;
  for (const auto& [rank, offer] : exchange_offers(session, own, peers)) {
    const Open open = [&session, &to = offer.address, rank](const transport::Patience& p) {
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
