// The messages of one group on one rank: matches sends with receives and moves their payload.
//
// The protocol is a rendezvous: the sender writes an OFFER, the receiver answers with ACCEPT, then DATA and the payload
// follow. The payload moves only once a receive was posted for it, directly between the callers' memory, so only offers
// are ever buffered.
#pragma once
#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "comm/pending.h"
#include "trace/counters.h"
#include "transport/link.h"

namespace ringdp::comm {

// Frames have a fixed size and contain no length that is trusted: the size of a payload is that of its receive.
enum class FrameKind : uint8_t { kOffer = 1, kAccept = 2, kData = 3 };

struct Frame {
  FrameKind kind = FrameKind::kOffer;
  uint64_t id = 0;  // of the offer: 1, 2, ... per sender and receiver
  int32_t tag = 0;  // this and the next two: only in offers, else 0
  DType dtype = DType::kU8;
  int64_t count = 0;
};

constexpr size_t kFrameBytes = 32;
using FrameBytes = std::array<std::byte, kFrameBytes>;

FrameBytes encode(const Frame& frame);

// nullopt unless encode() can have written it.
std::optional<Frame> decode(const FrameBytes& bytes);

struct Offer {
  int from = -1;  // rank
  Frame frame;
};

// Pairs offers with receives: a receive takes the oldest offer of its source and tag, an offer the oldest receive that
// fits. Points to receives, which must outlive it. Driver thread only.
class Matcher {
 public:
  // The most offers of one peer that may wait for a receive.
  static constexpr size_t kMostOffers = 65536;

  Matcher(int rank, int world) : rank_(rank), waiting_(static_cast<size_t>(world)) {}

  // Both throw Error(kMismatch) when the two differ in dtype or count.
  std::optional<Offer> post(Message& receive);  // the offer that it takes; nullopt: it waits
  // The receive that takes it; null: it waits. Error(kInternal) beyond kMostOffers.
  Message* offer(const Offer& offer);

  bool awaits_any_source() const { return any_source_ > 0; }
  // "; rank 1 offers float32 x 4 with tag 5, which waits for a receive here"; "" when no offer of `source`, a rank or
  // kAnySource, waits.
  std::string waiting_offer(int source) const;

 private:
  void check_same(const Message& receive, const Offer& offer) const;

  const int rank_;
  std::list<Message*> receives_;  // oldest first
  std::list<Offer> offers_;       // oldest first
  std::vector<size_t> waiting_;   // offers by rank
  int any_source_ = 0;            // of receives_
};

// Driver thread only; never blocks. A broken link is not an error here: the group asks stranded() later, when the watch
// may know the cause.
class Mailbox {
 public:
  using Messages = std::vector<std::shared_ptr<Message>>;
  using Time = Deadline::Clock::time_point;

  // `links` by group rank, null for this rank; they outlive the mailbox.
  Mailbox(int rank, const std::vector<transport::Link*>& links);

  // Error(kMismatch) when the other side differs in dtype or count.
  void post(std::shared_ptr<Message> message);
  // True when anything moved. Error(kMismatch) as above, Error(kInternal) when a peer breaks the protocol.
  bool advance();

  Messages take_finished();     // those whose last byte has moved since the last call
  Messages abandon();           // all others, oldest first; the mailbox is unusable afterwards
  Messages unfinished() const;  // oldest first
  trace::Totals take_totals();  // since the last call
  void add_polls(std::vector<pollfd>& polls) const;

  void peer_left(int rank, Time now);  // sends nothing new after its goodbye, but earlier bytes may still arrive
  // The oldest message that cannot complete: all its possible partners have left or lost their link, and no byte has
  // arrived from them since `quiet_since`. Null when there is none.
  const Message* stranded(Time quiet_since) const;
  const std::optional<Error>& link_error(int rank) const { return peers_[rank].link_error; }
  std::string waiting_offer(int source) const { return matcher_.waiting_offer(source); }

 private:
  struct Outgoing {
    FrameBytes frame;
    size_t sent = 0;             // of the frame
    Message* payload = nullptr;  // follows the frame; may be null
  };
  struct Peer {
    transport::Link* link = nullptr;
    int open = 0;                           // number of unfinished messages with this peer
    std::deque<Outgoing> frames, payloads;  // to write; frames first, because they are short
    std::optional<Outgoing> writing;
    FrameBytes frame{};  // the frame that is being read
    size_t frame_bytes = 0;
    Message* reading = nullptr;  // whose payload comes next; null: a frame comes next
    uint64_t offers_made = 0, offers_seen = 0;
    std::map<uint64_t, Message*> offered, accepted;  // by id: sends and receives here whose payload has not begun
    std::optional<Time> gone_since;                  // it left, or the link broke
    std::optional<Error> link_error;
    Time last_moved{};
  };

  void make_offer(Message& send);
  void accept(Message& receive, const Offer& offer);

  bool in_use(const Peer& peer) const;
  bool exchange(Peer& peer, int rank);
  bool read(Peer& peer, int rank);
  bool read_frame(Peer& peer, int rank);
  bool read_payload(Peer& peer);
  bool write(Peer& peer);
  bool write_some(Peer& peer);

  void handle(int rank, const Frame& frame);
  void take_offer(int rank, const Frame& frame);
  void start_payload(int rank, uint64_t id);
  void expect_payload(int rank, uint64_t id);
  [[noreturn]] void refuse(int rank, const std::string& what) const;
  void finish(Message& message);
  bool is_gone(const Peer& peer, Time quiet_since) const;

  Matcher matcher_;
  std::vector<Peer> peers_;                                  // by group rank
  std::map<uint64_t, std::shared_ptr<Message>> unfinished_;  // in order of post(); other members point to them
  uint64_t posted_ = 0;
  Messages finished_;
  trace::Totals totals_;
};

}  // namespace ringdp::comm
