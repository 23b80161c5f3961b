#include "collective/note_exchange.h"

#include <poll.h>

namespace ringdp::collective {
namespace {

constexpr size_t kBytes = sizeof(transport::Note);

}  // namespace

NoteExchange::NoteExchange(Opening opening, const Fabric& fabric, int rank, int world, bool at_barrier)
    : opening_(std::move(opening)),
      fabric_(fabric),
      rank_(rank),
      world_(world),
      in_arena_(fabric.arena != nullptr && fabric.arena->size() == world),
      at_barrier_(at_barrier),
      peers_(static_cast<size_t>(world)),
      unchecked_(world - 1),
      unsent_(in_arena_ ? 0 : world - 1) {
  peers_[rank].checked = true;
}

bool NoteExchange::advance() {
  bool any = false;
  // The own note first: a check that throws must not keep the other peers from learning of the mismatch.
  if (in_arena_ && !at_barrier_ && !posted_) {
    post();
    fabric_.arena->wake();
  }
  for (int rank = 0; rank < world_ && !in_arena_; ++rank) any |= rank != rank_ && send_to(rank);
  for (int rank = 0; rank < world_; ++rank) {
    if (rank != rank_) any |= in_arena_ ? look_at(rank) : receive_from(rank);
  }
  return any;
}

// Before the first arrival, so that nobody passes that barrier without it.
void NoteExchange::at_barrier() {
  if (in_arena_ && !posted_) post();
}

void NoteExchange::post() {
  fabric_.arena->post_note(opening_.seq, opening_.note);
  posted_ = true;
}

bool NoteExchange::look_at(int rank) {
  if (!posted_ || peers_[rank].checked || fabric_.arena->noted(rank) < opening_.seq) return false;
  accept(rank, fabric_.arena->note(rank, opening_.seq));
  return true;
}

bool NoteExchange::send_to(int rank) {
  Peer& peer = peers_[rank];
  if (peer.sent == kBytes) return false;
  const size_t n = fabric_.links[rank]->try_send(opening_.note.bytes + peer.sent, kBytes - peer.sent);
  peer.sent += n;
  bytes_sent_ += n;
  unsent_ -= n > 0 && peer.sent == kBytes;
  return n > 0;
}

bool NoteExchange::receive_from(int rank) {
  Peer& peer = peers_[rank];
  if (peer.checked) return false;
  const size_t n = fabric_.links[rank]->try_recv(peer.note.bytes + peer.received, kBytes - peer.received);
  peer.received += n;
  if (peer.received == kBytes) accept(rank, peer.note);
  return n > 0;
}

void NoteExchange::accept(int rank, const transport::Note& note) {
  opening_.check(rank, note);
  peers_[rank].checked = true;
  --unchecked_;
}

bool NoteExchange::may_send_to(int rank) const { return in_arena_ || peers_[rank].sent == kBytes; }

std::vector<int> NoteExchange::silent_ranks() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_; ++rank) {
    if (!peers_[rank].checked) ranks.push_back(rank);
  }
  return ranks;
}

void NoteExchange::add_events(std::vector<short>& events) const {
  for (int rank = 0; rank < world_ && !in_arena_; ++rank) {
    if (rank == rank_) continue;
    if (!peers_[rank].checked) events[rank] |= POLLIN;
    if (peers_[rank].sent < kBytes) events[rank] |= POLLOUT;
  }
}

}  // namespace ringdp::collective
