// How the ranks of a new group find and connect to each other: through the store, then over sockets.
//
// The rounds, all under one deadline: (1) every rank publishes its PeerInfo; (2) pairs on one host connect, exchange
// hellos, memfds and doorbells, and probe the mapping; (3) they publish whether that worked, and the ranks of a host
// use shared memory only if it did for all of them; (4) the other pairs connect over TCP, to one interface, under TLS
// where certificates are given. Listeners are closed before it returns.
//
// A peer that shares memory costs a group one descriptor, its control socket: memfds are closed once they are mapped,
// and pidfds and doorbells are shared by all groups of the process.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/settings.h"
#include "base/unique_fd.h"
#include "comm/peer_state.h"
#include "transport/arena.h"
#include "transport/doorbell.h"
#include "transport/identity.h"
#include "transport/link.h"
#include "transport/process_fds.h"
#include "transport/socket.h"
#include "transport/store.h"

namespace ringdp::comm {

struct Peer {
  int rank = -1;
  int pid = 0;
  std::string host;  // host name, for messages
  transport::HostIdentity identity;
  std::string address;        // of its host if connected over TCP, else empty
  bool same_host = false;     // and its process is here, or may be
  std::string why;            // "shm: same boot id and namespaces, mapping probed", "tcp: network namespaces differ"
  transport::Socket control;  // unix or TCP, for heartbeats, abort and goodbye
  std::shared_ptr<const UniqueFd> pidfd;      // null where its process is not seen here, or without pidfd_open
  std::unique_ptr<transport::Link> link;      // for collectives
  std::unique_ptr<transport::Link> messages;  // for sends and receives
  transport::ForkShield shield;               // for all its sockets; last, so that it is destroyed before they are
};

struct Mesh {
  int rank = 0, world = 1;
  Settings settings;                        // with rank 0's thresholds, and a slot_bytes that is equal on all ranks
  uint64_t generation = 0;                  // how many groups these ranks have made on this store prefix
  std::vector<Peer> peers;                  // by group rank; this rank's entry has no sockets
  std::vector<int> locals;                  // group ranks that share the arena, ascending, including this one
  std::vector<int> hosts;                   // first rank of each host, see contiguous_hosts(); empty on one host
  std::unique_ptr<transport::Arena> arena;  // null unless at least two ranks share memory
  std::string address;                      // "10.0.0.1 (eth0)" that TCP is bound to; empty without TCP

  bool is_on_one_host() const;    // as far as is known
  bool shares_one_arena() const;  // all ranks do; false for a world of one
};

// Collective over the ranks of the group. Error(kTimeout) names the missing ranks; Error(kInvalidArgument) says why a
// forced transport is impossible; Error(kPeerLost) names a rank that is waited for although it is known to be lost,
// from `losses` or because its process has ended since it published its PeerInfo. A long wait logs the missing ranks
// after 5 s, then every 10 s. `losses`: the lost ranks of the group that this process knows of. `name`: the group's, by
// which it finds the heap of the one that it follows (own_heap.h).
Mesh connect(transport::Store& store, int rank, int world, const Settings& settings,
             const transport::Doorbell& doorbell, Deadline deadline, const Losses& losses = {},
             const std::string& name = "");

// The same with a given identity instead of this process's, so that one machine can act as several hosts. The uid and
// pid must be real, because sockets are checked against them.
Mesh connect_as(const transport::HostIdentity& self, transport::Store& store, int rank, int world,
                const Settings& settings, const transport::Doorbell& doorbell, Deadline deadline,
                const Losses& losses = {});

// Called instead of connect() by a rank that cannot join: the ranks that wait for it fail at once.
void decline(transport::Store& store, int rank, int world, const std::string& why) noexcept;

}  // namespace ringdp::comm
