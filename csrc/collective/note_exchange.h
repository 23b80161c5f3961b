// How a collective opens: every rank shows its note (fingerprint) to all others and compares theirs with its own.
//
// In the arena when all ranks share it, else as the first bytes on every link. Driver thread only; never blocks.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "collective/fabric.h"

namespace ringdp::collective {

// One collective's side of the exchange.
struct Opening {
  uint64_t seq = 0;  // 1, 2, ... per group
  transport::Note note{};
  std::function<void(int rank, const transport::Note& theirs)> check;  // throws Error(kMismatch)
};

class NoteExchange {
 public:
  // `at_barrier`: the plan arrives at barriers of the arena, and shows the note before the first of them.
  NoteExchange(Opening opening, const Fabric& fabric, int rank, int world, bool at_barrier);

  bool advance();     // true when anything moved; throws Error(kMismatch, kPeerLost)
  void at_barrier();  // before each arrival: shows the note in the arena unless it is there

  bool over() const { return unchecked_ + unsent_ == 0; }
  bool all_checked() const { return unchecked_ == 0; }
  bool checked(int rank) const { return peers_[rank].checked; }  // what that rank sends may be used
  bool may_send_to(int rank) const;                              // the own note is out
  std::vector<int> silent_ranks() const;                         // whose note has not come
  void add_events(std::vector<short>& events) const;             // by rank: what to poll(2) its link for

  uint64_t seq() const { return opening_.seq; }
  uint64_t bytes_sent() const { return bytes_sent_; }  // on links

 private:
  struct Peer {
    size_t sent = 0;  // bytes of my note
    size_t received = 0;
    bool checked = false;
    transport::Note note{};
  };
  void post();
  bool look_at(int rank);  // in the arena
  bool send_to(int rank);
  bool receive_from(int rank);
  void accept(int rank, const transport::Note& note);

  const Opening opening_;
  const Fabric& fabric_;
  const int rank_, world_;
  const bool in_arena_, at_barrier_;
  bool posted_ = false;  // in the arena
  std::vector<Peer> peers_;
  int unchecked_, unsent_;
  uint64_t bytes_sent_ = 0;
};

}  // namespace ringdp::collective
