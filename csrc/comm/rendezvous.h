// How the ranks of a new group find and connect to each other: identities through the store, then sockets.
//
// Rounds, all under one deadline: (1) publish a card, with host identity and a unix socket; (2) same-host pairs connect, compare
// hellos, pass memfd and doorbell, probe the mapping; (3) publish what worked; a pair is "shm" only if both sides say
// so; (4) the others connect over TCP, to the one chosen interface, port 0, under TLS where certificates are given.
// Listeners are closed before it returns.
// A peer that shares memory costs each group one descriptor, its control socket: memfds are closed once mapped, pidfds
// and doorbells are shared by all groups of the process.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/env.h"
#include "base/unique_fd.h"
#include "comm/loss.h"
#include "transport/arena.h"
#include "transport/doorbell.h"
#include "transport/fork_shield.h"
#include "transport/identity.h"
#include "transport/link.h"
#include "transport/socket.h"
#include "transport/store.h"

namespace ringdp::comm {

struct Peer {
  int rank = -1;
  int pid = 0;
  std::string host;           // host name, for messages
  transport::HostIdentity identity;
  bool same_host = false;
  std::string why;            // "shm: same boot id and namespaces, mapping probed", "tcp: network namespaces differ"
  transport::Socket control;  // unix or TCP, for heartbeats, abort and goodbye
  std::shared_ptr<const UniqueFd> pidfd;  // where its pid means the same here and the kernel has pidfd_open; else null
  std::unique_ptr<transport::Link> link;      // of collectives
  std::unique_ptr<transport::Link> messages;  // of sends and receives
  transport::ForkShield shield;               // of all its sockets; last, so that it is gone before they are
};

struct Mesh {
  int rank = 0, world = 1;
  Settings settings;                        // in force: rank 0's thresholds, a slot_bytes that is the same everywhere
  uint64_t generation = 0;                  // how many groups these ranks have made on this store prefix
  std::vector<Peer> peers;                  // by group rank; the own entry has no sockets
  std::vector<int> locals;                  // group ranks that share the arena, ascending, own rank included
  std::vector<int> hosts;                   // first rank of each, see hosts.h; empty on one host
  std::unique_ptr<transport::Arena> arena;  // null unless at least two ranks share memory
  std::string address;                      // "10.0.0.1 (eth0)" that TCP is bound to; empty without TCP
};

// Collective over the ranks of the group. Error(kTimeout) names the ranks that did not come; Error(kInvalidArgument)
// says why a forced transport is impossible. While it waits it logs the missing ranks after 5 s, then every 10 s.
// `losses`: what this process knows already of ranks of the group. Error(kPeerLost) names one that is waited for, be it
// known from there or because its process ended since it said who it is.
Mesh connect(transport::Store& store, int rank, int world, const Settings& settings,
             const transport::Doorbell& doorbell, Deadline deadline, const Losses& losses = {});

// The same with a given identity instead of this process's: lets one machine act as several hosts. Its uid and pid must
// be real, as sockets are checked against them.
Mesh connect_as(const transport::HostIdentity& self, transport::Store& store, int rank, int world,
                const Settings& settings, const transport::Doorbell& doorbell, Deadline deadline,
                const Losses& losses = {});

// Instead of connect(), for a rank that cannot come: those who wait for it are told at once.
void decline(transport::Store& store, int rank, int world, const std::string& why) noexcept;

}  // namespace ringdp::comm
