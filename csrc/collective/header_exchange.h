// How a collective begins: every rank sends its header to all others, through the arena if it holds all ranks, else as
// ahead of its other bytes on every link, and checks theirs. Never blocks. Owned and called by the driver thread.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "collective/framed_link.h"
#include "transport/arena.h"
#include "transport/link.h"

namespace ringdp::collective {

// What the plans of one group run on. Owns no transport.
struct Fabric {
  std::vector<transport::Link*> links;  // by group rank; null for this rank
  transport::Arena* arena = nullptr;    // of the ranks of this host; null: this rank is alone
  std::vector<int> members;             // group ranks of the arena's members, ascending
  // Over each link; empty: collectives run one at a time, and their bytes follow each other without frames.
  std::vector<std::unique_ptr<FramedLink>> framed;

  bool runs_several() const { return !framed.empty(); }
  // Once all links are there, before the first collective. `ahead`: see FramedLink; alike on all ranks.
  void frame_links(size_t ahead);

  // Of collective `seq`, to and from `rank`: see Link, and FramedLink for what they must be.
  size_t try_send(uint64_t seq, int rank, const void* bytes, size_t size) const;
  size_t try_recv(uint64_t seq, int rank, void* bytes, size_t size) const;
  bool is_sending(uint64_t seq) const;                       // in the middle of a frame
  bool take_arrived() const;                                 // see FramedLink, of any link
  uint64_t take_frame_bytes() const;                         // likewise, of all together
  short events(uint64_t seq, int rank, short wanted) const;  // those of poll(2) that would let it go on
};

// This rank's side of the exchange for one collective.
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

  // Posts this rank's header in the arena, once; does nothing on links. The first wakes all members. The second is for
  // callers that arrive at a barrier next, which wakes members itself: it wakes only those that may be waiting for this
  // header, the last one missing, before they arrive.
  void publish();
  void publish_before_arrival();

  // Sends, receives and checks headers; true when anything moved. In the arena it checks only once this rank's header
  // is posted: a check that throws must not keep the others from detecting the mismatch.
  bool advance();
  bool all_checked() const { return left_ == 0; }
  bool done() const { return left_ + unsent_ == 0; }

  bool checked(int rank) const { return peers_[rank].checked; }
  bool sent_to(int rank) const { return in_arena_ || peers_[rank].sent == sizeof(transport::Header); }
  std::vector<int> silent_ranks() const;  // their headers have not arrived: they have not entered this collective
  uint64_t bytes_sent() const { return bytes_sent_; }

  // Adds to `events`, by rank, the poll(2) events that each rank's link waits for.
  void add_events(std::vector<short>& events) const;

 private:
  struct PeerState {
    size_t sent = 0;  // bytes of this rank's header
    size_t received = 0;
    bool checked = false;
    transport::Header header{};
  };

  bool post_once();  // true if it has posted the header just now
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
