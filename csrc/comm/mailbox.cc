#include "comm/mailbox.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"

namespace ringdp::comm {
namespace {

constexpr uint32_t kFrameMagic = 0x72646d32;  // "rdm2"

// Fixed width, no padding, host byte order, which the magic number checks.
struct WireFrame {
  uint32_t magic;
  uint8_t kind, dtype;
  uint16_t zero;
  uint64_t id;
  int64_t count;
  int32_t tag;
  uint32_t sum;  // CRC-32C of the fields before it
};
static_assert(sizeof(WireFrame) == kFrameBytes);
static_assert(std::has_unique_object_representations_v<WireFrame>);

uint32_t sum_of(const WireFrame& w) { return crc32c(0, &w, offsetof(WireFrame, sum)); }

bool valid(const WireFrame& w) {
  const bool offer = w.kind == static_cast<uint8_t>(FrameKind::kOffer);
  const bool answer =
      w.kind == static_cast<uint8_t>(FrameKind::kAccept) || w.kind == static_cast<uint8_t>(FrameKind::kData);
  const bool bare = w.tag == 0 && w.dtype == 0 && w.count == 0;
  return w.magic == kFrameMagic && w.zero == 0 && w.sum == sum_of(w) && w.id != 0 && w.count >= 0 &&
         w.dtype < kDTypeCount && (offer || (answer && bare));
}

bool is_from(const Offer& offer, int source) { return source == kAnySource || source == offer.from; }

bool fits(const Message& receive, const Offer& offer) {
  return is_from(offer, receive.peer()) && receive.tag() == offer.frame.tag;
}

std::string name_of_rank(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

FrameBytes encode(const Frame& f) {
  WireFrame w{kFrameMagic, static_cast<uint8_t>(f.kind), static_cast<uint8_t>(f.dtype), 0, f.id, f.count, f.tag, 0};
  w.sum = sum_of(w);
  FrameBytes bytes;
  std::memcpy(bytes.data(), &w, sizeof w);
  return bytes;
}

std::optional<Frame> decode(const FrameBytes& bytes) {
  WireFrame w;
  std::memcpy(&w, bytes.data(), sizeof w);
  if (!valid(w)) return std::nullopt;
  return Frame{static_cast<FrameKind>(w.kind), w.id, w.tag, static_cast<DType>(w.dtype), w.count};
}

std::optional<Offer> Matcher::post(Message& receive) {
  const auto found =
      std::find_if(offers_.begin(), offers_.end(), [&](const Offer& offer) { return fits(receive, offer); });
  if (found == offers_.end()) {
    receives_.push_back(&receive);
    any_source_ += receive.peer() == kAnySource;
    return std::nullopt;
  }
  const Offer offer = *found;
  check_same(receive, offer);
  offers_.erase(found);
  --waiting_[offer.from];
  return offer;
}

Message* Matcher::offer(const Offer& offer) {
  const auto found =
      std::find_if(receives_.begin(), receives_.end(), [&](const Message* receive) { return fits(*receive, offer); });
  if (found != receives_.end()) {
    Message* const receive = *found;
    check_same(*receive, offer);
    receives_.erase(found);
    any_source_ -= receive->peer() == kAnySource;
    return receive;
  }
  if (++waiting_[offer.from] > kMostOffers) {
    throw Error(ErrorKind::kInternal,
                name_of_rank(offer.from) + " has more than " + std::to_string(kMostOffers) + " sends to " +
                    name_of_rank(rank_) + " in flight that no receive was posted for (the newest has tag " +
                    std::to_string(offer.frame.tag) +
                    "): post receives earlier, or wait for sends before starting "
                    "more",
                offer.from);
  }
  offers_.push_back(offer);
  return nullptr;
}

void Matcher::check_same(const Message& receive, const Offer& offer) const {
  const bool same_dtype = receive.dtype() == offer.frame.dtype, same_count = receive.count() == offer.frame.count;
  if (same_dtype && same_count) return;
  const std::string differing = same_count ? "dtype" : same_dtype ? "element count" : "dtype, element count";
  throw Error(
      ErrorKind::kMismatch,
      "a send and its receive disagree (" + differing + "): " + name_of_rank(offer.from) + " called send(" +
          describe_payload(offer.frame.dtype, offer.frame.count) + " to " + name_of_rank(rank_) + ", tag " +
          std::to_string(offer.frame.tag) + "), " + name_of_rank(rank_) + " called " + receive.describe() +
          ". Use the same dtype and size on both sides, and different tags for messages that are in flight at once.",
      offer.from);
}

std::string Matcher::waiting_offer(int source) const {
  for (const Offer& offer : offers_) {
    if (!is_from(offer, source)) continue;
    return "; " + name_of_rank(offer.from) + " offers " + describe_payload(offer.frame.dtype, offer.frame.count) +
           " with tag " + std::to_string(offer.frame.tag) + ", which waits for a receive here";
  }
  return "";
}

Mailbox::Mailbox(int rank, const std::vector<transport::Link*>& links)
    : matcher_(rank, static_cast<int>(links.size())), peers_(links.size()) {
  for (size_t i = 0; i < links.size(); ++i) peers_[i].link = links[i];
}

void Mailbox::post(std::shared_ptr<Message> message) {
  Message& m = *message;
  m.order_ = ++posted_;
  unfinished_.emplace(m.order_, std::move(message));
  if (m.peer() != kAnySource) ++peers_[m.peer()].open;
  if (m.direction() == Direction::kSend) {
    make_offer(m);
  } else if (const auto offer = matcher_.post(m)) {
    accept(m, *offer);
  }
}

void Mailbox::make_offer(Message& send) {
  Peer& to = peers_[send.peer()];
  send.id_ = ++to.offers_made;
  to.offered.emplace(send.id_, &send);
  to.frames.push_back({encode({FrameKind::kOffer, send.id_, send.tag(), send.dtype(), send.count()})});
}

void Mailbox::accept(Message& receive, const Offer& offer) {
  Peer& from = peers_[offer.from];
  if (receive.peer() == kAnySource) ++from.open;
  receive.partner_ = offer.from;
  receive.id_ = offer.frame.id;
  receive.matched_ = true;
  from.accepted.emplace(receive.id_, &receive);
  from.frames.push_back({encode({FrameKind::kAccept, receive.id_})});
}

// A receive from any source needs all links; a peer without open messages may have closed its link long ago.
bool Mailbox::in_use(const Peer& peer) const {
  return peer.link && !peer.link_error && (peer.open > 0 || matcher_.awaits_any_source());
}

bool Mailbox::advance() {
  bool moved = false;
  for (size_t rank = 0; rank < peers_.size() && !unfinished_.empty(); ++rank) {
    if (in_use(peers_[rank])) moved |= exchange(peers_[rank], static_cast<int>(rank));
  }
  return moved;
}

bool Mailbox::exchange(Peer& peer, int rank) {
  bool moved = false;
  try {
    moved = read(peer, rank);
    moved |= write(peer);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kPeerLost) throw;
    peer.link_error = error;
    if (!peer.gone_since) peer.gone_since = Deadline::Clock::now();
  }
  if (moved) peer.last_moved = Deadline::Clock::now();
  return moved;
}

bool Mailbox::read(Peer& peer, int rank) {
  bool any = false;
  while (peer.reading ? read_payload(peer) : read_frame(peer, rank)) any = true;
  return any;
}

bool Mailbox::read_frame(Peer& peer, int rank) {
  const size_t n = peer.link->try_recv(peer.frame.data() + peer.frame_bytes, kFrameBytes - peer.frame_bytes);
  peer.frame_bytes += n;
  if (peer.frame_bytes < kFrameBytes) return n > 0;
  peer.frame_bytes = 0;
  const std::optional<Frame> frame = decode(peer.frame);
  if (!frame) refuse(rank, "sent bytes that are no frame");
  handle(rank, *frame);
  return true;
}

bool Mailbox::read_payload(Peer& peer) {
  Message& m = *peer.reading;
  const size_t n = peer.link->try_recv(static_cast<std::byte*>(m.request_.memory) + m.moved_, m.bytes() - m.moved_);
  if (n == 0 && m.moved_ < m.bytes()) return false;
  m.moved_ += n;
  m.last_moved_ = Deadline::Clock::now();
  totals_.wire_bytes_received += n;
  if (m.moved_ < m.bytes()) return true;
  peer.reading = nullptr;
  finish(m);
  return true;
}

bool Mailbox::write(Peer& peer) {
  bool any = false;
  for (;;) {
    if (!peer.writing) {
      std::deque<Outgoing>& queue = peer.frames.empty() ? peer.payloads : peer.frames;
      if (queue.empty()) return any;
      peer.writing = queue.front();
      queue.pop_front();
    }
    const bool moved = write_some(peer);
    any |= moved;
    Message* const payload = peer.writing->payload;
    if (peer.writing->sent == kFrameBytes && (!payload || payload->moved_ == payload->bytes())) {
      peer.writing.reset();
      if (payload) finish(*payload);
    } else if (!moved) {
      return any;
    }
  }
}

bool Mailbox::write_some(Peer& peer) {
  Outgoing& out = *peer.writing;
  if (out.sent < kFrameBytes) {
    const size_t n = peer.link->try_send(out.frame.data() + out.sent, kFrameBytes - out.sent);
    out.sent += n;
    totals_.header_bytes_sent += n;
    return n > 0;
  }
  Message& m = *out.payload;
  const auto* memory = static_cast<const std::byte*>(m.request_.memory);
  const size_t n = peer.link->try_send(memory + m.moved_, m.bytes() - m.moved_);
  if (n == 0) return false;
  m.moved_ += n;
  m.last_moved_ = Deadline::Clock::now();
  totals_.wire_bytes_sent += n;
  return true;
}

void Mailbox::handle(int rank, const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kOffer:
      return take_offer(rank, frame);
    case FrameKind::kAccept:
      return start_payload(rank, frame.id);
    case FrameKind::kData:
      return expect_payload(rank, frame.id);
  }
}

void Mailbox::take_offer(int rank, const Frame& frame) {
  Peer& from = peers_[rank];
  if (frame.id != ++from.offers_seen) {
    refuse(rank, "offered message " + std::to_string(frame.id) + " in place of " + std::to_string(from.offers_seen));
  }
  const Offer offer{rank, frame};
  if (Message* const receive = matcher_.offer(offer)) accept(*receive, offer);
}

void Mailbox::start_payload(int rank, uint64_t id) {
  Peer& to = peers_[rank];
  const auto found = to.offered.find(id);
  if (found == to.offered.end()) refuse(rank, "accepted message " + std::to_string(id) + ", which waits for no answer");
  Message& send = *found->second;
  to.offered.erase(found);
  send.matched_ = true;
  to.payloads.push_back({encode({FrameKind::kData, id}), 0, &send});
}

void Mailbox::expect_payload(int rank, uint64_t id) {
  Peer& from = peers_[rank];
  const auto found = from.accepted.find(id);
  if (found == from.accepted.end()) refuse(rank, "sent message " + std::to_string(id) + ", which was not accepted");
  from.reading = found->second;
  from.accepted.erase(found);
}

void Mailbox::refuse(int rank, const std::string& what) const {
  throw Error(ErrorKind::kInternal,
              "rank " + std::to_string(rank) + " " + what +
                  ": it runs another build of ringdp, or its memory is damaged; restart the job",
              rank);
}

void Mailbox::finish(Message& message) {
  --peers_[message.partner_].open;
  const auto found = unfinished_.find(message.order_);
  finished_.push_back(std::move(found->second));
  unfinished_.erase(found);
}

Mailbox::Messages Mailbox::take_finished() { return std::exchange(finished_, {}); }

Mailbox::Messages Mailbox::unfinished() const {
  Messages messages;
  for (const auto& [order, message] : unfinished_) messages.push_back(message);
  return messages;
}

Mailbox::Messages Mailbox::abandon() {
  Messages messages = unfinished();
  unfinished_.clear();
  return messages;
}

trace::Totals Mailbox::take_totals() { return std::exchange(totals_, {}); }

void Mailbox::add_polls(std::vector<pollfd>& polls) const {
  for (const Peer& peer : peers_) {
    if (unfinished_.empty() || !in_use(peer)) continue;
    const bool full = peer.writing || !peer.frames.empty() || !peer.payloads.empty();
    peer.link->add_polls(full ? POLLIN | POLLOUT : POLLIN, polls);
  }
}

void Mailbox::peer_left(int rank, Time now) {
  if (!peers_[rank].gone_since) peers_[rank].gone_since = now;
}

bool Mailbox::is_gone(const Peer& peer, Time quiet_since) const {
  return !peer.link || (peer.gone_since && std::max(*peer.gone_since, peer.last_moved) <= quiet_since);
}

const Message* Mailbox::stranded(Time quiet_since) const {
  for (const auto& [order, message] : unfinished_) {
    const bool any = message->partner() == kAnySource;
    const auto gone = [&](const Peer& peer) { return is_gone(peer, quiet_since); };
    if (any ? std::all_of(peers_.begin(), peers_.end(), gone) : gone(peers_[message->partner()])) return message.get();
  }
  return nullptr;
}

}  // namespace ringdp::comm
