#include "collective/executor.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "kernels/codec.h"
#include "kernels/copy.h"
#include "kernels/fold.h"
#include "kernels/fold_tree.h"
#include "trace/events.h"

namespace ringdp::collective {
namespace {

using plan::Form;
using plan::Ref;
using plan::Space;
using plan::Step;
using plan::Verb;

// After this much work the driver checks for failures, deadlines and other groups.
constexpr uint64_t kTurnBytes = 16 << 20;
// A block of a result fits in L2 together with its sources, or with what on_result() reads and writes for its elements.
constexpr int64_t kBlockBytes = 64 << 10;

// How many stages of slots a plan has: the next plan starts with the slot after its last.
uint64_t stages_of(const plan::Plan& plan) {
  int32_t last = -1;
  for (const plan::Channel& channel : plan.channels) {
    for (const Step& step : channel.steps) {
      for (const Ref& ref : step.srcs) last = ref.space == Space::kSlot ? std::max(last, ref.stage) : last;
      for (const Ref& ref : step.dsts) last = ref.space == Space::kSlot ? std::max(last, ref.stage) : last;
    }
  }
  return static_cast<uint64_t>(last + 1);
}

// By rank.
std::vector<size_t> count_sends(const plan::Plan& plan) {
  std::vector<size_t> sends(plan.world);
  for (const plan::Channel& channel : plan.channels) {
    for (const Step& step : channel.steps) {
      if (step.verb == Verb::kSend) ++sends[step.peer];
    }
  }
  return sends;
}

}  // namespace

Workspace::Scratch Workspace::take_scratch(size_t bytes) {
  auto found = std::find_if(scratch.begin(), scratch.end(), [](const Scratch& one) { return one.use_count() == 1; });
  if (found == scratch.end()) found = scratch.insert(found, std::make_shared<std::vector<std::byte>>());
  if ((*found)->size() < bytes) (*found)->resize(bytes);
  return *found;
}

Executor::Executor(const plan::Plan& plan, Buffers buffers, const Fabric& fabric, Workspace& workspace,
                   HeaderExchange headers, Observer observer)
    : plan_(plan),
      buffers_(std::move(buffers)),
      fabric_(fabric),
      workspace_(workspace),
      headers_(std::move(headers)),
      observer_(std::move(observer)),
      has_barriers_(plan::has_barriers(plan)),
      channels_(plan.channels.size()),
      stage_base_(workspace.stages) {
  if (fabric_.runs_several()) sends_left_ = count_sends(plan);
  if (buffers_.contributions) reader_.emplace(plan, fabric.members, *buffers_.contributions);
  const uint64_t stages = stages_of(plan);
  workspace_.stages += stages;
  if (stages > 0) workspace_.slot_stores.begin(stages);
  for (const plan::Channel& channel : plan.channels) channels_left_ += !channel.steps.empty();
  totals_.collectives = 1;
}

bool Executor::advance() {
  if (!has_barriers_) headers_.publish();
  turn_end_ = memory_bytes() + kTurnBytes;
  bool any = !headers_.done() && headers_.advance();
  for (size_t channel = 0; channel < channels_.size(); ++channel) any |= advance_channel(channel);
  if (fabric_.runs_several()) finish_sending();
  return any;
}

void Executor::finish_sending() {
  for (int rank = 0; rank < plan_.world; ++rank) {
    const bool sent = rank != plan_.rank && headers_.sent_to(rank) && sends_left_[rank] == 0;
    if (sent) fabric_.framed[rank]->finish_sending(headers_.seq());
  }
}

bool Executor::advance_channel(size_t index) {
  ChannelState& state = channels_[index];
  const std::vector<Step>& steps = plan_.channels[index].steps;
  bool any = false;
  while (state.step < steps.size() && ready(steps[state.step])) {
    const Step& step = steps[state.step];
    moved_ = false;
    if (!run(step, state)) return any || moved_;
    finish_step(step);
    state.bytes = state.announcement = 0;
    any = true;
    if (++state.step == steps.size()) --channels_left_;
    if (memory_bytes() >= turn_end_) break;
  }
  return any;
}

bool Executor::ready(const Step& step) const {
  for (const plan::After& after : step.after) {
    if (channels_[after.channel].step < static_cast<size_t>(after.steps)) return false;
  }
  return true;
}

bool Executor::run(const Step& step, ChannelState& state) {
  switch (step.verb) {
    case Verb::kSend:
      return send(step, state);
    case Verb::kRecv:
      return receive(step, state);
    case Verb::kFold:
      if (step.finish && !headers_.all_checked()) return false;  // it may need no rank's bytes but this one's
      fold(step);
      return true;
    case Verb::kCopy:
      copy(step);
      return true;
    case Verb::kEncode:
    case Verb::kDecode:
      recode(step);
      return true;
    case Verb::kArrive:
      // Published before the first arrival, so that every rank that passes the barrier sees the header.
      headers_.publish_before_arrival();
      fabric_.arena->arrive();
      state.barrier = fabric_.arena->arrived(fabric_.arena->index());
      return true;
    case Verb::kWait:
      if (!fabric_.arena->passed(state.barrier)) return false;
      if (!headers_.all_checked()) headers_.advance();
      return headers_.all_checked();
    case Verb::kPost:
    case Verb::kAwait:
    case Verb::kPush:
      break;
  }
  throw Error(ErrorKind::kInternal, plan_.algorithm + " has steps that only kernels run");
}

bool Executor::send(const Step& step, ChannelState& state) {
  if (!headers_.sent_to(step.peer)) return false;
  const uint64_t size = bytes_of(step.srcs[0]);
  if (step.announce && !send_bytes(step.peer, &size, sizeof size, state.announcement, totals_.header_bytes_sent))
    return false;
  const bool sent = send_bytes(step.peer, resolve(step.srcs[0]), size, state.bytes, totals_.wire_bytes_sent);
  note_backlog(step, state, sent, size);
  return sent;
}

// Reads the clock only when a link is full. One that has room for other collectives first is not.
void Executor::note_backlog(const Step& step, ChannelState& state, bool sent, size_t size) {
  const bool full = !sent && fabric_.events(headers_.seq(), step.peer, POLLOUT) != 0;
  if (full && state.full_since == 0) state.full_since = trace::now_ns();
  if (!full && state.full_since != 0) state.full_ns += trace::now_ns() - std::exchange(state.full_since, 0);
  if (!sent || state.full_ns == 0) return;
  backlogs_.resize(plan_.world);
  backlogs_[step.peer].bytes += static_cast<int64_t>(size);
  backlogs_[step.peer].ns += std::exchange(state.full_ns, 0);
}

bool Executor::receive(const Step& step, ChannelState& state) {
  if (!headers_.checked(step.peer)) return false;
  const size_t size = bytes_of(step.dsts[0]);
  if (step.announce && state.announcement < sizeof state.length) {
    if (!receive_bytes(step.peer, &state.length, sizeof state.length, state.announcement)) return false;
    check_announced(step.peer, state.length, size);
  }
  const size_t before = state.bytes;
  const bool complete = receive_bytes(step.peer, resolve(step.dsts[0]), size, state.bytes);
  totals_.wire_bytes_received += state.bytes - before;
  return complete;
}

bool Executor::send_bytes(int peer, const void* bytes, size_t size, size_t& sent, uint64_t& counter) {
  while (sent < size) {
    const std::byte* rest = static_cast<const std::byte*>(bytes) + sent;
    const size_t n = fabric_.try_send(headers_.seq(), peer, rest, size - sent);
    if (n == 0) return false;
    sent += n;
    counter += n;
    moved_ = true;
  }
  return true;
}

bool Executor::receive_bytes(int peer, void* bytes, size_t size, size_t& received) {
  while (received < size) {
    std::byte* rest = static_cast<std::byte*>(bytes) + received;
    const size_t n = fabric_.try_recv(headers_.seq(), peer, rest, size - received);
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
              "ranks disagree in collective #" + std::to_string(headers_.seq()) + " (splits of " +
                  plan::name_of(plan_.what) + "): " + them + " sends " + std::to_string(announced) + " bytes to " + me +
                  ", which expects " + std::to_string(expected) +
                  ". The size that a rank sends must equal the size that the receiver expects.",
              peer);
}

void Executor::finish_step(const Step& step) {
  ++totals_.steps;
  if (step.verb == Verb::kSend && fabric_.runs_several()) --sends_left_[step.peer];
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
    case Space::kOutput:
      base = static_cast<std::byte*>(buffers_.outputs[ref.index]);
      break;
    case Space::kScratch:
      if (!scratch_) scratch_ = workspace_.take_scratch(static_cast<size_t>(plan_.scratch_bytes));
      base = scratch_->data();
      break;
    case Space::kPeerInput:
      base = const_cast<std::byte*>(buffers_.peers[ref.index].inputs[ref.stage]);
      break;
    case Space::kPeerOutput:
      base = buffers_.peers[ref.index].output;
      break;
    case Space::kSlot:
      base = fabric_.arena->slot(ref.index, (stage_base_ + ref.stage) & 1);
      break;
    case Space::kPushed:
      break;  // only in kernels
  }
  return base + ref.offset;
}

trace::Totals Executor::totals() const {
  trace::Totals sums = totals_;
  sums.header_bytes_sent += headers_.bytes_sent();
  return sums;
}

void Executor::add_polls(std::vector<pollfd>& polls) const {
  std::vector<short> events(plan_.world, 0);
  headers_.add_events(events);
  for (size_t channel = 0; channel < channels_.size(); ++channel) {
    const std::vector<Step>& steps = plan_.channels[channel].steps;
    if (channels_[channel].step == steps.size()) continue;
    const Step& step = steps[channels_[channel].step];
    if (step.peer < 0 || !ready(step)) continue;
    if (step.verb == Verb::kSend && headers_.sent_to(step.peer)) events[step.peer] |= POLLOUT;
    if (step.verb == Verb::kRecv && headers_.checked(step.peer)) events[step.peer] |= POLLIN;
  }
  for (int rank = 0; rank < plan_.world; ++rank) {
    if (events[rank] == 0) continue;
    const short useful = fabric_.events(headers_.seq(), rank, events[rank]);
    if (useful != 0) fabric_.links[rank]->add_polls(useful, polls);
  }
}

std::vector<int> Executor::awaited_ranks() const {
  std::set<int> ranks;
  for (size_t channel = 0; channel < channels_.size(); ++channel) {
    const std::vector<Step>& steps = plan_.channels[channel].steps;
    if (channels_[channel].step == steps.size() || !ready(steps[channels_[channel].step])) continue;
    const Step& step = steps[channels_[channel].step];
    if (step.peer >= 0) ranks.insert(step.peer);
    for (size_t member = 0; step.verb == Verb::kWait && member < fabric_.members.size(); ++member) {
      const bool here = fabric_.arena->arrived(static_cast<int>(member)) >= channels_[channel].barrier;
      if (!here) ranks.insert(fabric_.members[member]);
    }
  }
  return {ranks.begin(), ranks.end()};
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
  // If all are partial sums, the kernels see plain tensors of the wide type.
  const auto is_wide = [](const Ref& ref) { return ref.form == Form::kWide; };
  const bool partial = is_wide(step.dsts[0]) && std::all_of(step.srcs.begin(), step.srcs.end(), is_wide);
  args.dtype = partial ? wide_of(plan_.dtype) : plan_.dtype;
  args.op = plan_.op;
  args.wide_src = step.srcs[0].form == Form::kWide;
  args.wide_dst = step.dsts[0].form == Form::kWide;
  const double divisor = buffers_.divisor != 0 ? buffers_.divisor : plan_.world;
  args.divisor = step.finish && plan_.op == ReduceOp::kAvg ? divisor : 0;
  // Folds use ordinary stores; a slot that is to get non-temporal stores is copied from the first destination.
  const bool copies = args.n_dsts == 2 && stages_nontemporal(step.dsts[1]);
  if (copies) args.n_dsts = 1;
  const SlotTimer timer(workspace_.slot_stores, step, bytes_of(step.dsts[0]));
  const bool reports = buffers_.on_result && step.finish && !copies && step.dsts[0].space == Space::kOutput;
  if (reports || reader_) {
    fold_in_blocks(step, args, reports);
  } else {
    add_up(step, args);
  }
  if (copies) kernels::copy_nontemporal(dsts[0], dsts[1], static_cast<int64_t>(bytes_of(step.dsts[1])));
}

// In the order of the plan.
void Executor::add_up(const Step& step, const kernels::FoldArgs& args) const {
  if (step.program < 0) return kernels::fold(args);
  std::vector<kernels::TreeSource> sources;
  for (int i = 0; i < args.n_srcs; ++i) sources.push_back({args.srcs[i], step.srcs[i].form == Form::kWide});
  kernels::TreeArgs tree;
  tree.srcs = sources;
  tree.program = plan_.programs[step.program];
  tree.dsts = {args.dsts, static_cast<size_t>(args.n_dsts)};
  tree.count = args.count;
  tree.dtype = args.dtype;
  tree.wide_dst = args.wide_dst;
  tree.divisor = args.divisor;
  kernels::fold_tree(tree);
}

// Block by block, so that sources that were just checksummed are still cached, and results that are to be checksummed
// or that on_result() reads.
void Executor::fold_in_blocks(const Step& step, const kernels::FoldArgs& args, bool reports) {
  const auto bytes_per_element = [&](const Ref& ref) { return static_cast<int64_t>(bytes_of(ref)) / ref.count; };
  const int64_t block = kBlockBytes / bytes_per_element(step.dsts[0]);
  std::vector<const void*> srcs(args.n_srcs);
  std::vector<void*> dsts(args.n_dsts);
  for (int64_t begin = 0; begin < args.count; begin += block) {
    kernels::FoldArgs part = args;
    part.count = std::min(block, args.count - begin);
    for (int i = 0; i < args.n_srcs; ++i) {
      const Ref& ref = step.srcs[i];
      srcs[i] = static_cast<const std::byte*>(args.srcs[i]) + begin * bytes_per_element(ref);
      if (reader_) reader_->read(ref, srcs[i], part.count);
    }
    for (int i = 0; i < args.n_dsts; ++i) {
      dsts[i] = static_cast<std::byte*>(args.dsts[i]) + begin * bytes_per_element(step.dsts[i]);
    }
    part.srcs = srcs.data();
    part.dsts = dsts.data();
    add_up(step, part);
    if (reader_) reader_->wrote(step, dsts[0], part.count);
    if (reports) buffers_.on_result(step.dsts[0].offset / size_of(plan_.dtype) + begin, part.count);
  }
}

bool Executor::stages_nontemporal(const Ref& ref) const {
  return ref.space == Space::kSlot && bytes_of(ref) >= SlotStores::kLarge && workspace_.slot_stores.nontemporal();
}

void Executor::copy(const Step& step) {
  const std::byte* src = resolve(step.srcs[0]);
  std::byte* dst = resolve(step.dsts[0]);
  const size_t size = bytes_of(step.srcs[0]);
  if (src == dst || size == 0) return;  // all_gather into a tensor that already holds this rank's part
  const bool nontemporal = step.nontemporal || stages_nontemporal(step.dsts[0]);
  const SlotTimer timer(workspace_.slot_stores, step, size);
  (nontemporal ? kernels::copy_nontemporal : kernels::copy)(src, dst, static_cast<int64_t>(size));
  totals_.memory_bytes_read += size;
  totals_.memory_bytes_written += size;
}

void Executor::recode(const Step& step) {
  const Ref& src = step.srcs[0];
  const Ref& dst = step.dsts[0];
  const bool encodes = step.verb == Verb::kEncode;
  const DType dtype = (encodes ? src : dst).form == Form::kWide ? wide_of(plan_.dtype) : plan_.dtype;
  if (reader_ && encodes && src.space == Space::kInput) reader_->read(src, resolve(src), src.count);
  (encodes ? kernels::encode : kernels::decode)(plan_.wire, dtype, resolve(src), resolve(dst), src.count);
  if (reader_ && !encodes) reader_->wrote(step, resolve(dst), dst.count);
  totals_.memory_bytes_read += bytes_of(src);
  totals_.memory_bytes_written += bytes_of(dst);
}

}  // namespace ringdp::collective
