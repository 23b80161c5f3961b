// The lanes of plans in which every rank talks to every other: one per peer and direction, and one for own memory.
//
// A slow peer then holds nobody else back.
#pragma once
#include <vector>

#include "plan/builder.h"

namespace ringdp::plan {

struct PeerLanes {
  PeerLanes(Builder& builder, const Problem& problem) : send(problem.world), recv(problem.world) {
    for (int i = 1; i < problem.world; ++i) peers.push_back((problem.rank + i) % problem.world);
    for (int peer : peers) send[peer] = builder.add_send_lane(peer);
    for (int peer : peers) recv[peer] = builder.add_recv_lane(peer);
    own = builder.add_lane("fold");
  }

  std::vector<int> peers;       // starting with the next rank, so that no rank is everyone's first target
  std::vector<int> send, recv;  // lanes by peer
  int own = 0;                  // lane of folds and copies
};

}  // namespace ringdp::plan
