#include "collective/executor.h"

#include <cstring>
#include <set>

#include "base/bytes.h"
#include "kernels/fold.h"

namespace ringdp::collective {
namespace {

using plan::Form;
using plan::Ref;
using plan::Space;
using plan::Step;
using plan::Verb;

bool uses_arena(const plan::Plan& plan) {
  for (const plan::Lane& lane : plan.lanes) {
    for (const Step& step : lane.steps) {
      if (step.verb == Verb::kSignal) return true;
    }
  }
  return false;
}

// Slot stages a plan goes through: the next plan must start at the other slot.
uint64_t stages_of(const plan::Plan& plan) {
  int32_t last = -1;
  for (const plan::Lane& lane : plan.lanes) {
    for (const Step& step : lane.steps) {
      for (const Ref& ref : step.srcs) last = ref.space == Space::kSlot ? std::max(last, ref.stage) : last;
      for (const Ref& ref : step.dsts) last = ref.space == Space::kSlot ? std::max(last, ref.stage) : last;
    }
  }
  return static_cast<uint64_t>(last + 1);
}

}  // namespace

Executor::Executor(const plan::Plan& plan, Buffers buffers, const Fabric& fabric, Workspace& workspace,
                   Opening opening, Observer observer)
    : plan_(plan),
      buffers_(std::move(buffers)),
      fabric_(fabric),
      workspace_(workspace),
      opening_(std::move(opening)),
      observer_(std::move(observer)),
      on_arena_(uses_arena(plan)),
      lanes_(plan.lanes.size()),
      peers_(plan.world),
      notes_left_(plan.world - 1),
      stage_base_(workspace.stages) {
  if (workspace_.scratch.size() < static_cast<size_t>(plan.scratch_bytes)) {
    workspace_.scratch.resize(plan.scratch_bytes);
  }
  workspace_.stages += stages_of(plan);
  for (const plan::Lane& lane : plan.lanes) lanes_left_ += !lane.steps.empty();
  peers_[plan.rank].checked = true;
  notes_unsent_ = on_arena_ ? 0 : notes_left_;
  totals_.collectives = 1;
}

bool Executor::advance() {
  bool any = notes_left_ + notes_unsent_ > 0 && exchange_notes();
  for (size_t lane = 0; lane < lanes_.size(); ++lane) any |= advance_lane(lane);
  return any;
}

bool Executor::exchange_notes() {
  bool any = false;
  // The own note first: a check that throws must not keep the other peers from learning of the mismatch.
  for (int rank = 0; rank < plan_.world && !on_arena_; ++rank) any |= rank != plan_.rank && send_note(rank);
  for (int rank = 0; rank < plan_.world; ++rank) {
    if (rank != plan_.rank) any |= on_arena_ ? look_at_note(rank) : receive_note(rank);
  }
  return any;
}

bool Executor::look_at_note(int rank) {
  const bool mine_is_out = fabric_.arena->noted(fabric_.arena->index()) >= opening_.seq;
  if (!mine_is_out || peers_[rank].checked || fabric_.arena->noted(rank) < opening_.seq) return false;
  accept_note(rank, fabric_.arena->note(rank, opening_.seq));
  return true;
}

bool Executor::send_note(int rank) {
  PeerState& peer = peers_[rank];
  if (peer.sent == sizeof(transport::Note)) return false;
  const size_t n = fabric_.links[rank]->try_send(opening_.note.bytes + peer.sent, sizeof(transport::Note) - peer.sent);
  peer.sent += n;
  totals_.header_bytes_sent += n;
  notes_unsent_ -= n > 0 && peer.sent == sizeof(transport::Note);
  return n > 0;
}

bool Executor::receive_note(int rank) {
  PeerState& peer = peers_[rank];
  if (peer.checked) return false;
  const size_t n = fabric_.links[rank]->try_recv(peer.note.bytes + peer.received, sizeof(transport::Note) - peer.received);
  peer.received += n;
  if (peer.received == sizeof(transport::Note)) accept_note(rank, peer.note);
  return n > 0;
}

void Executor::accept_note(int rank, const transport::Note& note) {
  opening_.check(rank, note);
  peers_[rank].checked = true;
  --notes_left_;
}

bool Executor::advance_lane(size_t index) {
  LaneState& state = lanes_[index];
  const std::vector<Step>& steps = plan_.lanes[index].steps;
  bool any = false;
  while (state.step < steps.size() && ready(steps[state.step])) {
    const Step& step = steps[state.step];
    moved_ = false;
    if (!run(step, state)) return any || moved_;
    finish_step(step);
    state.bytes = 0;
    any = true;
    if (++state.step == steps.size()) --lanes_left_;
  }
  return any;
}

bool Executor::ready(const Step& step) const {
  for (const plan::After& after : step.after) {
    if (lanes_[after.lane].step < static_cast<size_t>(after.steps)) return false;
  }
  return true;
}

bool Executor::run(const Step& step, LaneState& state) {
  switch (step.verb) {
    case Verb::kSend: return send(step, state);
    case Verb::kRecv: return receive(step, state);
    case Verb::kFold: fold(step); return true;
    case Verb::kCopy: copy(step); return true;
    case Verb::kSignal:
      // The first arrival of a collective shows the note: it is complete before anyone can pass the barrier.
      if (state.barrier == 0) fabric_.arena->post_note(opening_.seq, opening_.note);
      fabric_.arena->arrive();
      state.barrier = fabric_.arena->arrived(fabric_.arena->index());
      return true;
    case Verb::kWait:
      if (!fabric_.arena->passed(state.barrier)) return false;
      if (notes_left_ > 0) exchange_notes();
      return notes_left_ == 0;
  }
  return true;
}

bool Executor::send(const Step& step, LaneState& state) {
  if (peers_[step.peer].sent < sizeof(transport::Note)) return false;
  const size_t size = bytes_of(step.srcs[0]);
  const std::byte* bytes = resolve(step.srcs[0]);
  while (state.bytes < size) {
    const size_t n = fabric_.links[step.peer]->try_send(bytes + state.bytes, size - state.bytes);
    if (n == 0) return false;
    state.bytes += n;
    totals_.wire_bytes_sent += n;
    moved_ = true;
  }
  return true;
}

bool Executor::receive(const Step& step, LaneState& state) {
  if (!peers_[step.peer].checked) return false;
  const size_t size = bytes_of(step.dsts[0]);
  std::byte* bytes = resolve(step.dsts[0]);
  while (state.bytes < size) {
    const size_t n = fabric_.links[step.peer]->try_recv(bytes + state.bytes, size - state.bytes);
    if (n == 0) return false;
    state.bytes += n;
    totals_.wire_bytes_received += n;
    moved_ = true;
  }
  return true;
}

void Executor::fold(const Step& step) {
  std::vector<const void*> srcs;
  std::vector<void*> dsts;
  for (const Ref& ref : step.srcs) {
    srcs.push_back(resolve(ref));
    totals_.memory_bytes_read += bytes_of(ref);
  }
  for (const Ref& ref : step.dsts) {
    dsts.push_back(resolve(ref));
    totals_.memory_bytes_written += bytes_of(ref);
  }
  kernels::FoldArgs args;
  args.srcs = srcs.data();
  args.n_srcs = static_cast<int>(srcs.size());
  args.dsts = dsts.data();
  args.n_dsts = static_cast<int>(dsts.size());
  args.count = step.dsts[0].count;
  args.dtype = plan_.dtype;
  args.op = plan_.op;
  args.wide_src = step.srcs[0].form == Form::kWide;
  args.wide_dst = step.dsts[0].form == Form::kWide;
  args.divisor = step.finish && plan_.op == ReduceOp::kAvg ? plan_.world : 0;
  kernels::fold(args);
}

void Executor::copy(const Step& step) {
  const std::byte* src = resolve(step.srcs[0]);
  std::byte* dst = resolve(step.dsts[0]);
  const size_t size = bytes_of(step.srcs[0]);
  if (src == dst || size == 0) return;  // all_gather into a tensor that already holds the own part
  std::memmove(dst, src, size);
  totals_.memory_bytes_read += size;
  totals_.memory_bytes_written += size;
}

void Executor::finish_step(const Step& step) {
  ++totals_.steps;
  totals_.rounds = std::max<uint64_t>(totals_.rounds, step.round + 1);
  if (!observer_) return;
  std::vector<void*> dsts;
  for (const Ref& ref : step.dsts) dsts.push_back(resolve(ref));
  observer_(step, dsts);
}

std::byte* Executor::resolve(const Ref& ref) const {
  std::byte* base = nullptr;
  switch (ref.space) {
    case Space::kInput:
      base = static_cast<std::byte*>(const_cast<void*>(buffers_.inputs[ref.index]));
      break;
    case Space::kOutput: base = static_cast<std::byte*>(buffers_.outputs[ref.index]); break;
    case Space::kScratch: base = workspace_.scratch.data(); break;
    case Space::kSlot: base = fabric_.arena->slot(ref.index, (stage_base_ + ref.stage) & 1); break;
  }
  return base + ref.offset;
}

void Executor::add_polls(std::vector<pollfd>& polls) const {
  if (on_arena_) return;
  std::vector<short> events(plan_.world, 0);
  for (int rank = 0; rank < plan_.world; ++rank) {
    if (rank == plan_.rank) continue;
    if (!peers_[rank].checked) events[rank] |= POLLIN;
    if (peers_[rank].sent < sizeof(transport::Note)) events[rank] |= POLLOUT;
  }
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const std::vector<Step>& steps = plan_.lanes[lane].steps;
    if (lanes_[lane].step == steps.size()) continue;
    const Step& step = steps[lanes_[lane].step];
    if (step.peer < 0 || !ready(step)) continue;
    events[step.peer] |= step.verb == Verb::kSend ? POLLOUT : POLLIN;
  }
  for (int rank = 0; rank < plan_.world; ++rank) {
    const int fd = events[rank] == 0 ? -1 : fabric_.links[rank]->poll_fd();
    if (fd >= 0) polls.push_back({fd, events[rank], 0});
  }
}

std::vector<int> Executor::silent_ranks() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < plan_.world; ++rank) {
    if (!peers_[rank].checked) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> Executor::awaited_ranks() const {
  std::set<int> ranks;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const std::vector<Step>& steps = plan_.lanes[lane].steps;
    if (lanes_[lane].step == steps.size() || !ready(steps[lanes_[lane].step])) continue;
    const Step& step = steps[lanes_[lane].step];
    if (step.peer >= 0) ranks.insert(step.peer);
    for (int member = 0; step.verb == Verb::kWait && member < plan_.world; ++member) {
      if (fabric_.arena->arrived(member) < lanes_[lane].barrier) ranks.insert(member);
    }
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace ringdp::collective
