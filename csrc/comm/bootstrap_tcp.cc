#include <algorithm>
#include <optional>

#include "base/fork_mutex.h"
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

// The interface of this process's latest group between hosts, and the settings that led to it.
struct Known {
  std::string wanted, master;
  transport::Interface interface;
};

struct Memory {
  ForkMutex mutex;
  std::optional<Known> known;  // under it
};

Memory& memory() {
  static Memory* const one = new Memory;
  return *one;
}

void remember(std::optional<Known> known) {
  const std::lock_guard lock(memory().mutex);
  memory().known = std::move(known);
}

std::optional<Known> remembered() {
  const std::lock_guard lock(memory().mutex);
  return memory().known;
}

bool is_up(const transport::Interface& known) {
  const std::vector<transport::Interface> all = transport::list_interfaces();
  return std::any_of(all.begin(), all.end(), [&](const transport::Interface& one) {
    return one.name == known.name && one.address.host() == known.address.host();
  });
}

TcpDoor open_on(const Settings& settings, const transport::Interface& interface) {
  TcpDoor door{interface, transport::listen_on(interface.address), {}};
  door.endpoint = {SocketAddress::bound_to(door.listener.get()), wanted_streams(settings, interface)};
  return door;
}

std::string master() { return read_env("MASTER_ADDR").value_or(""); }

}  // namespace

TcpDoor TcpDoor::open(const Settings& settings, bool one_host) {
  TcpDoor door = open_on(settings, pick_interface(settings, one_host));
  if (!one_host) remember(Known{settings.socket_ifname, master(), door.interface});
  return door;
}

std::optional<TcpDoor> TcpDoor::reopened(const Settings& settings) {
  const std::optional<Known> known = remembered();
  if (!known || known->wanted != settings.socket_ifname || known->master != master()) return std::nullopt;
  if (!is_up(known->interface)) return std::nullopt;
  return open_on(settings, known->interface);
}

std::map<int, TcpEndpoint> exchange_endpoints(const Session& session, const TcpEndpoint& own,
                                              const std::vector<int>& peers) {
  session.store_exchange.publish(kWhat, to_text(own));
  const std::vector<std::string> texts = session.store_exchange.gather(kWhat, peers);
  std::map<int, TcpEndpoint> endpoints;
  for (size_t i = 0; i < peers.size(); ++i) endpoints.emplace(peers[i], parse_endpoint(session, peers[i], texts[i]));
  return endpoints;
}

TcpExchange exchange_tcp(const Session& session, const TcpDoor& door, const std::map<int, TcpEndpoint>& endpoints) {
  std::vector<transport::Hello> expected;
  std::vector<transport::Dialer::Call> calls;
  const int self = session.rank();
  for (const auto& [rank, endpoint] : endpoints) {
    for (const Line& line : lines_of(std::min(endpoint.streams, door.endpoint.streams))) {
      if (rank > self) {
        expected.push_back(session.hello(rank, self, line.purpose, line.stream));
      } else {
        calls.push_back({endpoint.address, session.hello(self, rank, line.purpose, line.stream)});
      }
    }
  }
  TcpExchange result;
  result.address = door.interface.address.host() + " (" + door.interface.name + ")";
  try {
    for (auto& arrival : meet_over_tcp(session, door.listener.get(), std::move(expected), std::move(calls))) {
      const int rank = arrival.hello.from;
      const Line line{arrival.hello.purpose, arrival.hello.stream};
      keep(rank, result.connections[rank], line, std::move(arrival.socket), session.settings);
    }
  } catch (...) {
    remember(std::nullopt);  // the next group chooses anew
    throw;
  }
  return result;
}

}  // namespace ringdp::comm
