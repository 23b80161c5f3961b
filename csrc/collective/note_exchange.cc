#include "collective/note_exchange.h"

#include <poll.h>

#include <utility>

namespace ringdp::collective {
namespace {

constexpr size_t kNoteSize = sizeof(transport::Note);

}  // namespace

NoteExchange::NoteExchange(const Fabric& fabric, int rank, int world, Opening opening)
    : fabric_(fabric),
      rank_(rank),
      opening_(std::move(opening)),
      in_arena_(fabric.arena != nullptr && fabric.arena->size() == world),
      peers_(world),
      left_(world - 1),
      unsent_(in_arena_ ? 0 : left_) {
  peers_[rank].checked = true;
}

bool NoteExchange::publish() {
  if (!in_arena_ || posted_) return false;
  posted_ = true;
  fabric_.arena->post_note(opening_.seq, opening_.note);
  return true;
}

void NoteExchange::post() {
  if (publish() && completes_notes_awaited()) fabric_.arena->wake();
}

void NoteExchange::show() {
  if (publish()) fabric_.arena->wake();
}

// Of two members that post at the same time, the later one sees the other's note: posting and looking are seq_cst.
bool NoteExchange::completes_notes_awaited() const {
  const transport::Arena& arena = *fabric_.arena;
  bool awaited = false;
  for (int member = 0; member < arena.size(); ++member) {
    if (arena.noted(member) < opening_.seq) return false;
    awaited |= member != arena.index() && arena.arrived(member) <= arena.arrived(arena.index());
  }
  return awaited;
}

bool NoteExchange::advance() {
  bool any = false;
  for (int rank = 0; rank < static_cast<int>(peers_.size()) && !in_arena_; ++rank) any |= rank != rank_ && send(rank);
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (!peers_[rank].checked) any |= in_arena_ ? look_at(rank) : receive(rank);
  }
  return any;
}

bool NoteExchange::look_at(int rank) {
  if (!posted_ || fabric_.arena->noted(rank) < opening_.seq) return false;
  accept(rank, fabric_.arena->note(rank, opening_.seq));
  return true;
}

bool NoteExchange::send(int rank) {
  PeerState& peer = peers_[rank];
  if (peer.sent == kNoteSize) return false;
  const size_t n = fabric_.links[rank]->try_send(opening_.note.bytes + peer.sent, kNoteSize - peer.sent);
  peer.sent += n;
  bytes_sent_ += n;
  unsent_ -= n > 0 && peer.sent == kNoteSize;
  return n > 0;
}

bool NoteExchange::receive(int rank) {
  PeerState& peer = peers_[rank];
  const size_t n = fabric_.links[rank]->try_recv(peer.note.bytes + peer.received, kNoteSize - peer.received);
  peer.received += n;
  if (peer.received == kNoteSize) accept(rank, peer.note);
  return n > 0;
}

void NoteExchange::accept(int rank, const transport::Note& note) {
  opening_.check(rank, note);
  peers_[rank].checked = true;
  --left_;
}

std::vector<int> NoteExchange::silent_ranks() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (!peers_[rank].checked) ranks.push_back(rank);
  }
  return ranks;
}

void NoteExchange::add_events(std::vector<short>& events) const {
  for (int rank = 0; rank < static_cast<int>(peers_.size()) && !in_arena_; ++rank) {
    if (rank == rank_) continue;
    if (!peers_[rank].checked) events[rank] |= POLLIN;
    if (!sent_to(rank)) events[rank] |= POLLOUT;
  }
}

}  // namespace ringdp::collective
