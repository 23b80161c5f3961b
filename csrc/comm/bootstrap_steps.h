// The steps of the bootstrap, in the order in which bootstrap.cc takes them.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/settings.h"
#include "comm/peer_info.h"
#include "comm/store_exchange.h"
#include "transport/doorbell.h"
#include "transport/hello.h"
#include "transport/identity.h"
#include "transport/shm/shm_arena.h"
#include "transport/socket.h"
#include "transport/tcp/address.h"
#include "transport/tcp/dialer.h"
#include "transport/tcp/tls.h"
#include "transport/unix_socket.h"

namespace ringdp::comm {

// What all ranks of a group know before the first socket opens.
struct Session {
  StoreExchange& store_exchange;
  const Settings& settings;
  Secret secret;
  std::shared_ptr<const transport::TlsContext> tls{};  // for TCP connections; null: plain text
  std::string group{};                                 // its name

  int rank() const { return store_exchange.rank(); }
  int world() const { return store_exchange.world(); }
  transport::Hello hello(int from, int to, transport::Purpose purpose, uint32_t stream = 0) const;
};

// Error(kInternal): "rank 2 published a malformed peer_info (store key 1/peer_info/2)".
[[noreturn]] void throw_malformed(const StoreExchange& store_exchange, const std::string& what, int rank);

// handshake.cc: the two sides of an authenticated connection. The higher rank connects, the lower one accepts.

// Opens a connection; an empty socket means "try again".
using Open = std::function<transport::Socket(const transport::WaitPolicy&)>;
using Admit = transport::Acceptor::Admit;

// Connects to `peer` over a unix socket and exchanges hellos. A connection that the other side closes is opened again:
// its listener may have been flooded. Errors are those of the store exchange.
transport::Socket connect_to_peer(const Session& session, int peer, const Open& open, const Admit& admit);

// The connections of all `expected` hellos and of all `calls`; those of TCP under the session's TLS. Other connections
// are refused and reported by a warning: they must not end the bootstrap, and a rank of the group reports its own
// failure. Errors are those of the store exchange; Error(kMismatch) when TLS with a rank that is called fails.
std::vector<transport::Arrival> accept_peers(const Session& session, int listener,
                                             std::vector<transport::Hello> expected, const Admit& admit);
std::vector<transport::Arrival> meet_over_tcp(const Session& session, int listener,
                                              std::vector<transport::Hello> expected,
                                              std::vector<transport::Dialer::Call> calls);

// bootstrap_shm.cc: the ranks of one host pass each other memory and doorbells, and verify the mappings.

struct ShmExchange {
  transport::Probe probe;  // of the whole host: one failed pair fails it, so that all its ranks decide the same
  transport::SegmentLayout layout;
  std::vector<transport::LocalMember> members;  // by member number; complete only if the probe worked
  transport::OwnHeap heap;                      // this rank's
  std::map<int, transport::Socket> controls;    // by rank; only if the probe worked
};

// How much of a slot plans use: whole cache lines, equal on all ranks of all hosts.
int64_t planned_slot_bytes(const Settings& settings);
// Slots of at least that size, streams of a power of two. `heap_bytes`: see PeerInfo.
transport::SegmentLayout segment_layout(const Settings& settings, int members, int64_t heap_bytes);

// `locals`: at least two ranks of one host, ascending, including this one; `infos` by rank. Memory that cannot be
// shared is a failed probe, not an error; a rank that vanishes is Error(kPeerLost).
ShmExchange exchange_memory(const Session& session, const std::vector<int>& locals, const std::vector<PeerInfo>& infos,
                            const transport::UnixListener& listener, const transport::Doorbell& doorbell);

// First rank of every host, ascending; empty when the ranks of some host are not contiguous.
std::vector<int> contiguous_hosts(const std::vector<PeerInfo>& infos);

// The same, but empty unless the ranks of every host share memory, which each rank knows only of its own host:
// collective over the ranks of the group, with one round through the store if some host has several.
std::vector<int> agree_on_hosts(const Session& session, const std::vector<PeerInfo>& infos, bool mine_shares_memory);

// bootstrap_tcp.cc: TCP connections to every peer that does not share memory.

// How many streams carry the collectives of a pair, and why; equal on both sides. The smaller number of what they want,
// but at least kFarStreams where tcp_streams is 0 and two ranks, on different hosts at least kFarMs apart, are the
// whole group: a lost packet then holds up one stream only. More ranks have several connections on a path anyway, and
// with several for each pair, small calls of three ranks were measured to take twice as long.
struct Streams {
  int count = 1;
  bool far = false;  // whether they are kFarMs apart
  std::string why;   // "4 streams, 52 ms apart by way of the store"; of one: empty
};
constexpr int kFarStreams = 4, kFarMs = 10;  // the latter is the sum of both round trips to the store
Streams streams_between(const Settings& settings, int world, const TcpEndpoint& a, const TcpEndpoint& b);

struct TcpExchange {
  struct Connection {
    transport::Socket control, messages;
    std::vector<transport::Socket> bulk;  // by stream
    Streams streams;
    std::string address;  // of the other side, for messages
  };
  std::map<int, Connection> connections;  // by rank
  std::string address;                    // "10.0.0.1 (eth0)" that this rank is bound to
};

// Where this rank listens for TCP connections.
struct TcpDoor {
  transport::Interface interface;
  UniqueFd listener;
  TcpEndpoint endpoint;

  // On the interface that suits the group; `one_host`: all its ranks run on this host. `round_trip`: to the store.
  static TcpDoor open(const Settings& settings, bool one_host, std::chrono::nanoseconds round_trip);
  // On the interface of this process's latest group between hosts, if it is up and wanted in the same way. Of the round
  // trips of both groups the shorter one counts: this early, only one request has been timed.
  static std::optional<TcpDoor> reopened(const Settings& settings, std::chrono::nanoseconds round_trip);
};

// The endpoints of `peers`, by rank: one round through the store.
std::map<int, TcpEndpoint> exchange_endpoints(const Session& session, const TcpEndpoint& own,
                                              const std::vector<int>& peers);

// Connects to the ranks of these endpoints, at least one, all at the same time.
TcpExchange exchange_tcp(const Session& session, const TcpDoor& door, const std::map<int, TcpEndpoint>& endpoints);

}  // namespace ringdp::comm
