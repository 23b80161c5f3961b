// How a collective opens: every rank shows its header to all others, in the arena that holds them all or else as the
// first bytes on every link, and checks theirs. Never blocks. Owned and called by the driver thread.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "transport/arena.h"
#include "transport/link.h"

namespace ringdp::collective {

// What the plans of one group run on. Owns nothing.
struct Fabric {
  std::vector<transport::Link*> links;  // by group rank; the own entry is null
  transport::Arena* arena = nullptr;    // of the ranks of this host
  std::vector<int> members;             // group ranks of the arena's members, ascending
};

// One collective's side of the exchange.
struct Opening {
  uint64_t seq = 0;  // 1, 2, ... per group
  transport::Header header{};
  std::function<void(int rank, const transport::Header& theirs)> check;  // throws Error(kMismatch)
};

class HeaderExchange {
 public:
  // `fabric` must outlive the exchange.
  HeaderExchange(const Fabric& fabric, int rank, int world, Opening opening);

  uint64_t seq() const { return opening_.seq; }

  // In the arena: makes the own header visible and wakes all, or only if a member that has not arrived at the next
  // barrier may be waiting for this last header: an arrival wakes the others. Nothing on links, or the second time.
  void show();
  void post();

  // Sends and looks; true when anything moved. In the arena it looks only once the own header is posted: a check that
  // throws must not keep the others from learning of the mismatch.
  bool advance();
  bool all_checked() const { return left_ == 0; }
  bool done() const { return left_ + unsent_ == 0; }

  bool checked(int rank) const { return peers_[rank].checked; }
  bool sent_to(int rank) const { return in_arena_ || peers_[rank].sent == sizeof(transport::Header); }
  std::vector<int> silent_ranks() const;  // whose header has not come: they have not entered this collective
  uint64_t bytes_sent() const { return bytes_sent_; }

  // What to poll(2) of each rank's link, added to `events` by rank.
  void add_events(std::vector<short>& events) const;

 private:
  struct PeerState {
    size_t sent = 0;  // bytes of my header
    size_t received = 0;
    bool checked = false;
    transport::Header header{};
  };

  bool publish();  // true once, in the arena
  bool send(int rank);
  bool receive(int rank);
  bool look_at(int rank);
  void accept(int rank, const transport::Header& header);
  bool completes_headers_awaited() const;

  const Fabric& fabric_;
  const int rank_;
  Opening opening_;
  bool in_arena_;
  bool posted_ = false;  // in the arena
  std::vector<PeerState> peers_;
  size_t left_;    // of peers, not yet checked
  size_t unsent_;  // own, to peers whose link was full
  uint64_t bytes_sent_ = 0;
};

}  // namespace ringdp::collective
