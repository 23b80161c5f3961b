#include <algorithm>
#include <chrono>
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
constexpr std::chrono::minutes kMostStoreTrip{1};

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
  std::chrono::nanoseconds round_trip;
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

TcpDoor open_on(const Settings& settings, const transport::Interface& interface, std::chrono::nanoseconds round_trip) {
  using std::chrono::milliseconds;
  TcpDoor door{interface, transport::listen_on(interface.address), {}};
  const auto store_ms =
      std::chrono::round<milliseconds>(std::min<std::chrono::nanoseconds>(round_trip, kMostStoreTrip));
  door.endpoint = {SocketAddress::bound_to(door.listener.get()), wanted_streams(settings, interface),
                   static_cast<int>(store_ms.count())};
  return door;
}

std::string master() { return read_env("MASTER_ADDR").value_or(""); }

}  // namespace

Streams streams_between(const Settings& settings, int world, const TcpEndpoint& a, const TcpEndpoint& b) {
  const int64_t apart_ms = int64_t{a.store_ms} + b.store_ms;
  const bool far = apart_ms >= kFarMs && a.address.host() != b.address.host();
  const bool more = far && world == 2 && settings.tcp_streams == 0;
  const int wanted = std::min(a.streams, b.streams), count = more ? std::max(wanted, kFarStreams) : wanted;
  if (count == 1) return {count, far, ""};
  const std::string why = settings.tcp_streams > 0 ? " (tcp_streams)"
                          : count == wanted        ? " for the speed of the interface"
                                                   : ", " + std::to_string(apart_ms) + " ms apart by way of the store";
  return {count, far, std::to_string(count) + " streams" + why};
}

TcpDoor TcpDoor::open(const Settings& settings, bool one_host, std::chrono::nanoseconds round_trip) {
  TcpDoor door = open_on(settings, pick_interface(settings, one_host), round_trip);
  if (!one_host) remember(Known{settings.socket_ifname, master(), door.interface, round_trip});
  return door;
}

std::optional<TcpDoor> TcpDoor::reopened(const Settings& settings, std::chrono::nanoseconds round_trip) {
  const std::optional<Known> known = remembered();
  if (!known || known->wanted != settings.socket_ifname || known->master != master()) return std::nullopt;
  if (!is_up(known->interface)) return std::nullopt;
  return open_on(settings, known->interface, std::min(known->round_trip, round_trip));
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
  TcpExchange result;
  std::vector<transport::Hello> expected;
  std::vector<transport::Dialer::Call> calls;
  const int self = session.rank();
  for (const auto& [rank, endpoint] : endpoints) {
    Streams& streams = result.connections[rank].streams;
    streams = streams_between(session.settings, session.world(), endpoint, door.endpoint);
    for (const Line& line : lines_of(streams.count)) {
      if (rank > self) {
        expected.push_back(session.hello(rank, self, line.purpose, line.stream));
      } else {
        calls.push_back({endpoint.address, session.hello(self, rank, line.purpose, line.stream)});
      }
    }
  }
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
