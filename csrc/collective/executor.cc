#include "collective/executor.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/bytes.h"
#include "base/error.h"
#include "trace/clock.h"

namespace ringdp::collective {
namespace {

using plan::Form;
using plan::Ref;
using plan::Space;
using plan::Step;
using plan::Verb;

// After so much work the driver looks at failures, deadlines and other groups.
constexpr uint64_t kTurnBytes = 16 << 20;

bool signals(const plan::Plan& plan) {
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
                   NoteExchange notes, Observer observer)
    : plan_(plan),
      buffers_(std::move(buffers)),
      fabric_(fabric),
      workspace_(workspace),
      notes_(std::move(notes)),
      observer_(std::move(observer)),
      has_barriers_(signals(plan)),
      lanes_(plan.lanes.size()),
      stage_base_(workspace.stages) {
  if (workspace_.scratch.size() < static_cast<size_t>(plan.scratch_bytes)) {
    workspace_.scratch.resize(plan.scratch_bytes);
  }
  if (buffers_.contributions) reader_.emplace(plan, fabric.members, *buffers_.contributions);
  const uint64_t stages = stages_of(plan);
  workspace_.stages += stages;
  workspace_.slot_path.begin(stages);
  for (const plan::Lane& lane : plan.lanes) lanes_left_ += !lane.steps.empty();
  totals_.collectives = 1;
}

bool Executor::advance() {
  if (!has_barriers_) notes_.show();
  turn_end_ = memory_bytes() + kTurnBytes;
  bool any = !notes_.done() && notes_.advance();
  for (size_t lane = 0; lane < lanes_.size(); ++lane) any |= advance_lane(lane);
  return any;
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
    state.bytes = state.header = 0;
    any = true;
    if (++state.step == steps.size()) --lanes_left_;
    if (memory_bytes() >= turn_end_) break;
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
    case Verb::kEncode:
    case Verb::kDecode: recode(step); return true;
    case Verb::kSignal:
      // The first arrival of a collective shows the note: it is complete before anyone can pass the barrier.
      notes_.post();
      fabric_.arena->arrive();
      state.barrier = fabric_.arena->arrived(fabric_.arena->index());
      return true;
    case Verb::kWait:
      if (!fabric_.arena->passed(state.barrier)) return false;
      if (!notes_.all_checked()) notes_.advance();
      return notes_.all_checked();
  }
  return true;
}

bool Executor::send(const Step& step, LaneState& state) {
  if (!notes_.sent_to(step.peer)) return false;
  const uint64_t size = bytes_of(step.srcs[0]);
  if (step.announce && !send_bytes(step.peer, &size, sizeof size, state.header, totals_.header_bytes_sent)) return false;
  const bool sent = send_bytes(step.peer, resolve(step.srcs[0]), size, state.bytes, totals_.wire_bytes_sent);
  note_backlog(step, state, sent, size);
  return sent;
}

// The clock is looked at only where a link is full.
void Executor::note_backlog(const Step& step, LaneState& state, bool sent, size_t size) {
  if (sent && state.full_since == 0) return;
  if (state.full_since == 0) state.full_since = trace::now_ns();
  if (!sent) return;
  backlogs_.resize(plan_.world);
  backlogs_[step.peer].bytes += static_cast<int64_t>(size);
  backlogs_[step.peer].ns += trace::now_ns() - state.full_since;
  state.full_since = 0;
}

bool Executor::receive(const Step& step, LaneState& state) {
  if (!notes_.checked(step.peer)) return false;
  const size_t size = bytes_of(step.dsts[0]);
  if (step.announce && state.header < sizeof state.length) {
    if (!receive_bytes(step.peer, &state.length, sizeof state.length, state.header)) return false;
    check_announced(step.peer, state.length, size);
  }
  const size_t before = state.bytes;
  const bool complete = receive_bytes(step.peer, resolve(step.dsts[0]), size, state.bytes);
  totals_.wire_bytes_received += state.bytes - before;
  return complete;
}

bool Executor::send_bytes(int peer, const void* bytes, size_t size, size_t& sent, uint64_t& counter) {
  while (sent < size) {
    const size_t n = fabric_.links[peer]->try_send(static_cast<const std::byte*>(bytes) + sent, size - sent);
    if (n == 0) return false;
    sent += n;
    counter += n;
    moved_ = true;
  }
  return true;
}

bool Executor::receive_bytes(int peer, void* bytes, size_t size, size_t& received) {
  while (received < size) {
    const size_t n = fabric_.links[peer]->try_recv(static_cast<std::byte*>(bytes) + received, size - received);
    if (n == 0) return false;
    received += n;
    moved_ = true;
  }
  return true;
}

void Executor::check_announced(int peer, uint64_t announced, size_t expected) const {
  if (announced == expected) return;
  const std::string me = "rank " + std::to_string(plan_.rank), them = "rank " + std::to_string(peer);
  throw Error(ErrorKind::kMismatch,
              "ranks disagree in collective #" + std::to_string(notes_.seq()) + " (splits of " +
                  plan::name_of(plan_.what) + "): " + them + " sends " + std::to_string(announced) + " bytes to " + me +
                  ", which expects " + std::to_string(expected) +
                  ". What one rank sends to another must be what that one expects from it.",
              peer);
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
    case Space::kPeerInput: base = const_cast<std::byte*>(buffers_.peers[ref.index].inputs); break;
    case Space::kPeerOutput: base = buffers_.peers[ref.index].output; break;
    case Space::kSlot: base = fabric_.arena->slot(ref.index, (stage_base_ + ref.stage) & 1); break;
  }
  return base + ref.offset;
}

trace::Totals Executor::totals() const {
  trace::Totals sums = totals_;
  sums.header_bytes_sent += notes_.bytes_sent();
  return sums;
}

void Executor::add_polls(std::vector<pollfd>& polls) const {
  std::vector<short> events(plan_.world, 0);
  notes_.add_events(events);
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const std::vector<Step>& steps = plan_.lanes[lane].steps;
    if (lanes_[lane].step == steps.size()) continue;
    const Step& step = steps[lanes_[lane].step];
    if (step.peer < 0 || !ready(step)) continue;
    events[step.peer] |= step.verb == Verb::kSend ? POLLOUT : POLLIN;
  }
  for (int rank = 0; rank < plan_.world; ++rank) {
    if (events[rank] != 0) fabric_.links[rank]->add_polls(events[rank], polls);
  }
}

std::vector<int> Executor::awaited_ranks() const {
  std::set<int> ranks;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const std::vector<Step>& steps = plan_.lanes[lane].steps;
    if (lanes_[lane].step == steps.size() || !ready(steps[lanes_[lane].step])) continue;
    const Step& step = steps[lanes_[lane].step];
    if (step.peer >= 0) ranks.insert(step.peer);
    for (size_t member = 0; step.verb == Verb::kWait && member < fabric_.members.size(); ++member) {
      const bool here = fabric_.arena->arrived(static_cast<int>(member)) >= lanes_[lane].barrier;
      if (!here) ranks.insert(fabric_.members[member]);
    }
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace ringdp::collective
