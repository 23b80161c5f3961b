#include "collective/header_exchange.h"

#include <poll.h>

#include <algorithm>
#include <utility>

namespace ringdp::collective {
namespace {

constexpr size_t kHeaderSize = sizeof(transport::Header);

}  // namespace

void Fabric::frame_links(size_t ahead) {
  for (size_t rank = 0; rank < links.size(); ++rank) {
    transport::Link* link = links[rank];
    framed.push_back(link ? std::make_unique<FramedLink>(*link, static_cast<int>(rank), ahead) : nullptr);
  }
}

size_t Fabric::try_send(uint64_t seq, int rank, const void* bytes, size_t size) const {
  return framed.empty() ? links[rank]->try_send(bytes, size) : framed[rank]->try_send(seq, bytes, size);
}

size_t Fabric::try_recv(uint64_t seq, int rank, void* bytes, size_t size) const {
  return framed.empty() ? links[rank]->try_recv(bytes, size) : framed[rank]->try_recv(seq, bytes, size);
}

bool Fabric::is_sending(uint64_t seq) const {
  return std::any_of(framed.begin(), framed.end(), [seq](const auto& link) { return link && link->is_sending(seq); });
}

bool Fabric::take_arrived() const {
  bool any = false;
  for (const auto& link : framed) any |= link && link->take_arrived();
  return any;
}

uint64_t Fabric::take_frame_bytes() const {
  uint64_t bytes = 0;
  for (const auto& link : framed) bytes += link ? link->take_frame_bytes() : 0;
  return bytes;
}

short Fabric::events(uint64_t seq, int rank, short wanted) const {
  if (framed.empty()) return wanted;
  const int sends = framed[rank]->may_send(seq) ? POLLOUT : 0, receives = framed[rank]->may_receive(seq) ? POLLIN : 0;
  return static_cast<short>(wanted & (sends | receives));
}

HeaderExchange::HeaderExchange(const Fabric& fabric, int rank, int world, Opening opening)
    : fabric_(fabric),
      rank_(rank),
      opening_(std::move(opening)),
      in_arena_(fabric.arena != nullptr && fabric.arena->size() == world),
      peers_(world),
      left_(world - 1),
      unsent_(in_arena_ ? 0 : left_) {
  peers_[rank].checked = true;
}

bool HeaderExchange::post_once() {
  if (!in_arena_ || posted_) return false;
  posted_ = true;
  fabric_.arena->post_header(opening_.seq, opening_.header);
  return true;
}

void HeaderExchange::publish_before_arrival() {
  if (post_once() && completes_headers_awaited()) fabric_.arena->wake();
}

void HeaderExchange::publish() {
  if (post_once()) fabric_.arena->wake();
}

// Of two members that post at the same time, the later one sees the other's header: posting and looking are seq_cst.
bool HeaderExchange::completes_headers_awaited() const {
  const transport::Arena& arena = *fabric_.arena;
  bool awaited = false;
  for (int member = 0; member < arena.size(); ++member) {
    if (arena.last_header(member) < opening_.seq) return false;
    awaited |= member != arena.index() && arena.arrived(member) <= arena.arrived(arena.index());
  }
  return awaited;
}

bool HeaderExchange::advance() {
  bool any = false;
  for (int rank = 0; rank < static_cast<int>(peers_.size()) && !in_arena_; ++rank) any |= rank != rank_ && send(rank);
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (!peers_[rank].checked) any |= in_arena_ ? look_at(rank) : receive(rank);
  }
  return any;
}

bool HeaderExchange::look_at(int rank) {
  if (!posted_ || fabric_.arena->last_header(rank) < opening_.seq) return false;
  accept(rank, fabric_.arena->header(rank, opening_.seq));
  return true;
}

bool HeaderExchange::send(int rank) {
  PeerState& peer = peers_[rank];
  if (peer.sent == kHeaderSize) return false;
  const std::byte* rest = opening_.header.bytes + peer.sent;
  const size_t n = fabric_.try_send(opening_.seq, rank, rest, kHeaderSize - peer.sent);
  peer.sent += n;
  bytes_sent_ += n;
  unsent_ -= n > 0 && peer.sent == kHeaderSize;
  return n > 0;
}

bool HeaderExchange::receive(int rank) {
  PeerState& peer = peers_[rank];
  std::byte* rest = peer.header.bytes + peer.received;
  const size_t n = fabric_.try_recv(opening_.seq, rank, rest, kHeaderSize - peer.received);
  peer.received += n;
  if (peer.received == kHeaderSize) accept(rank, peer.header);
  return n > 0;
}

void HeaderExchange::accept(int rank, const transport::Header& header) {
  opening_.check(rank, header);
  peers_[rank].checked = true;
  --left_;
}

std::vector<int> HeaderExchange::silent_ranks() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (!peers_[rank].checked) ranks.push_back(rank);
  }
  return ranks;
}

void HeaderExchange::add_events(std::vector<short>& events) const {
  for (int rank = 0; rank < static_cast<int>(peers_.size()) && !in_arena_; ++rank) {
    if (rank == rank_) continue;
    if (!peers_[rank].checked) events[rank] |= POLLIN;
    if (!sent_to(rank)) events[rank] |= POLLOUT;
  }
}

}  // namespace ringdp::collective
