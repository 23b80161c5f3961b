#include <algorithm>
#include <optional>

#include "comm/bootstrap_steps.h"
#include "comm/peer_info.h"
#include "transport/tcp/address.h"
#include "transport/tcp/tcp_socket.h"

namespace ringdp::comm {
namespace {

using transport::Purpose;
using transport::SocketAddress;

constexpr char kWhat[] = "address";

TcpEndpoint parse_endpoint(const Session& session, int rank, const std::string& text) {
  const auto endpoint = tcp_endpoint_from_text(text);
  if (!endpoint) throw_malformed(session.store_exchange, kWhat, rank);
  return *endpoint;
}

int wanted_streams(const Settings& settings, const transport::Interface& chosen) {
  if (settings.tcp_streams > 0) return static_cast<int>(settings.tcp_streams);
  return transport::streams_for(transport::interface_speed(chosen.name));
}

// One connection of a pair.
struct Line {
  Purpose purpose;
  uint32_t stream;
};

std::vector<Line> lines_of(int streams) {
  std::vector<Line> lines = {{Purpose::kControl, 0}, {Purpose::kMessages, 0}};
  for (int stream = 0; stream < streams; ++stream) lines.push_back({Purpose::kBulk, static_cast<uint32_t>(stream)});
  return lines;
}

transport::Interface pick_interface(const Settings& settings, bool one_host) {
  transport::InterfacePreference wish{settings.socket_ifname, std::nullopt, one_host};
  const auto master = read_env("MASTER_ADDR");
  // Looking up a name can be slow, so it is done only if needed.
  if (wish.name.empty() && !one_host && master) wish.route = transport::route_to(*master);
  return transport::choose_interface(transport::list_interfaces(), wish);
}

// The peer may have ended since its hello.
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
  if (line.purpose == Purpose::kControl) {
    transport::tune_for_control(socket.get(), settings.unreachable_ms);
    connection.control = std::move(socket);
    return;
  }
  transport::tune_for_bulk(socket.get());
  if (line.purpose == Purpose::kMessages) {
    connection.messages = std::move(socket);
    return;
  }
  if (connection.bulk.size() <= line.stream) connection.bulk.resize(line.stream + 1);
  connection.bulk[line.stream] = std::move(socket);
}

// The endpoints of all peers, by rank, with the number of streams that the pair will have.
std::map<int, TcpEndpoint> exchange_endpoints(const Session& session, const TcpEndpoint& own,
                                              const std::vector<int>& peers) {
  session.store_exchange.publish(kWhat, to_text(own));
  const std::vector<std::string> texts = session.store_exchange.gather(kWhat, peers);
  std::map<int, TcpEndpoint> endpoints;
  for (size_t i = 0; i < peers.size(); ++i) {
    TcpEndpoint endpoint = parse_endpoint(session, peers[i], texts[i]);
    endpoint.streams = std::min(endpoint.streams, own.streams);
    endpoints.emplace(peers[i], endpoint);
  }
  return endpoints;
}

}  // namespace

TcpExchange exchange_tcp(const Session& session, const std::vector<int>& peers, bool one_host) {
  const transport::Interface chosen = pick_interface(session.settings, one_host);
  const UniqueFd listener = transport::listen_on(chosen.address);
  const TcpEndpoint own{SocketAddress::bound_to(listener.get()), wanted_streams(session.settings, chosen)};

  TcpExchange result;
  result.address = chosen.address.host() + " (" + chosen.name + ")";
  // Over TCP there is nothing to check but the token in the hello.
  const Admit admit = [](int, int) { return true; };
  std::vector<transport::Hello> expected;
  for (const auto& [rank, endpoint] : exchange_endpoints(session, own, peers)) {
    const Open open = [&session, &to = endpoint.address, rank = rank](const transport::WaitPolicy& p) {
      UniqueFd fd = transport::connect_tcp(to, p);
      const std::string peer = "rank " + std::to_string(rank) + " at " + to.text();
      auto tls = session.tls ? session.tls->connect(fd.get(), peer) : nullptr;
      return transport::Socket(std::move(fd), std::move(tls));
    };
    for (const Line& line : lines_of(endpoint.streams)) {
      if (rank > session.rank()) {
        expected.push_back(session.hello(rank, session.rank(), line.purpose, line.stream));
        continue;
      }
      transport::Socket socket = connect_to_peer(session, rank, line.purpose, open, admit, line.stream);
      keep(rank, result.connections[rank], line, std::move(socket), session.settings);
    }
  }
  for (auto& arrival : accept_peers(session, listener.get(), std::move(expected), admit, session.tls.get())) {
    const Line line{arrival.hello.purpose, arrival.hello.stream};
    keep(arrival.hello.from, result.connections[arrival.hello.from], line, std::move(arrival.socket), session.settings);
  }
  return result;
}

}  // namespace ringdp::comm
