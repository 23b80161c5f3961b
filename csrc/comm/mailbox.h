// The messages of one group on one rank: matches sends with receives and moves their payload, a little at a time.
//
// Rendezvous: payload is sent only once a receive was posted for it, straight from and to the callers' memory, so
// nothing unexpected is ever buffered; only offers wait. Driver thread only; never blocks. A link that breaks is not an
// error here: the group asks stranded() later, when the watch may know better why.
#pragma once
#include <poll.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/matcher.h"
#include "trace/counters.h"
#include "transport/link.h"

namespace ringdp::comm {

class Mailbox {
 public:
  using Messages = std::vector<std::shared_ptr<Message>>;
  using Time = Deadline::Clock::time_point;

  // `links` by group rank, the own entry null; they outlive the mailbox.
  Mailbox(int rank, const std::vector<transport::Link*>& links);

  // Error(kMismatch) when the other side differs in dtype or count.
  void post(std::shared_ptr<Message> message);
  // True when anything moved. Error(kMismatch) as above, Error(kInternal) when a peer breaks the protocol.
  bool advance();

  Messages take_finished();      // those whose last byte has moved since the last call
  Messages abandon();            // all others, oldest first; the mailbox is of no use afterwards
  Messages unfinished() const;   // oldest first
  trace::Totals take_totals();   // since the last call
  void add_polls(std::vector<pollfd>& polls) const;

  void peer_left(int rank, Time now);  // it said goodbye: no new bytes, but some may be under way
  // The oldest message that cannot end: all who could be its partner have left or lost their link, and nothing has come
  // from them since `quiet_since`. Null when there is none.
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
    int open = 0;                            // unfinished messages that this rank is the partner of
    std::deque<Outgoing> frames, payloads;   // to write; frames first, they hold nobody up
    std::optional<Outgoing> writing;
    FrameBytes frame{};                      // being read
    size_t frame_bytes = 0;
    Message* reading = nullptr;              // whose payload comes next; null: a frame
    uint64_t offers_made = 0, offers_seen = 0;
    std::map<uint64_t, Message*> offered, accepted;  // by id: own sends, own receives whose payload has not begun
    std::optional<Time> gone_since;          // it left, or the link broke
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
  std::map<uint64_t, std::shared_ptr<Message>> unfinished_;  // by order; everything else points to these
  uint64_t posted_ = 0;
  Messages finished_;
  trace::Totals totals_;
};

}  // namespace ringdp::comm
