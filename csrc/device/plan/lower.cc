#include "device/plan/lower.h"

#include <algorithm>
#include <map>

#include "base/bytes.h"
#include "base/error.h"
#include "plan/one_pass.h"

namespace ringdp::plan {
namespace {

bool is_same(const Ref& a, const Ref& b) {
  return a.space == b.space && a.form == b.form && a.index == b.index && a.stage == b.stage && a.offset == b.offset &&
         a.count == b.count;
}

// A step of a plan, with the handle that other steps wait for.
struct OrderedStep {
  const Step* step;
  After done;
};

std::vector<OrderedStep> in_order(const Plan& plan) {
  std::vector<OrderedStep> steps;
  for (size_t channel = 0; channel < plan.channels.size(); ++channel) {
    int32_t done = 0;
    for (const Step& step : plan.channels[channel].steps)
      steps.push_back({&step, {static_cast<int32_t>(channel), ++done}});
  }
  std::sort(steps.begin(), steps.end(),
            [](const OrderedStep& a, const OrderedStep& b) { return a.step->number < b.step->number; });
  return steps;
}

bool waits_for(const Step& step, const After& done) {
  return std::any_of(step.after.begin(), step.after.end(),
                     [&](const After& after) { return after.channel == done.channel && after.steps == done.steps; });
}

// All steps of a plan, in the order in which they were added to it.
struct Sequence {
  explicit Sequence(Plan written) : plan(std::move(written)), steps(in_order(plan)) {}
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  std::vector<OrderedStep> find(Verb verb, int peer) const {
    std::vector<OrderedStep> found;
    for (const OrderedStep& one : steps) {
      if (one.step->verb == verb && one.step->peer == peer) found.push_back(one);
    }
    return found;
  }
  bool is_awaited(const After& done) const {
    return std::any_of(steps.begin(), steps.end(), [&](const OrderedStep& one) { return waits_for(*one.step, done); });
  }

  const Plan plan;
  const std::vector<OrderedStep> steps;
};

class Lowering {
 public:
  Lowering(const Problem& problem, const std::function<Plan(const Problem&)>& plan_of)
      : problem_(problem), plan_of_(plan_of), own_(plan_of(problem)), awaited_receives_(own_.plan.channels.size()) {
    lowered_.algorithm = own_.plan.algorithm;
    lowered_.what = own_.plan.what;
    lowered_.dtype = own_.plan.dtype;
    lowered_.op = own_.plan.op;
    lowered_.rank = own_.plan.rank;
    lowered_.world = own_.plan.world;
    lowered_.input = input_elements(problem, problem.rank);
    lowered_.output = output_elements(problem);
  }

  DevicePlan build() {
    for (const OrderedStep& one : own_.steps) {
      for (const After& after : one.step->after) await_message(after);
      run(one);
    }
    for (const OrderedStep& one : own_.steps) await_last(one);
    if (has_messages()) require_stage_of_all();
    if (lowered_.steps.size() <= static_cast<size_t>(kMaxDeviceSteps)) return std::move(lowered_);
    throw Error(ErrorKind::kInvalidArgument, lowered_.algorithm + " needs " + std::to_string(lowered_.steps.size()) +
                                                 " steps on rank " + std::to_string(lowered_.rank) +
                                                 ", a kernel takes " + std::to_string(kMaxDeviceSteps) +
                                                 ": use larger segments or algorithm=direct");
  }

 private:
  // ---- steps

  void run(const OrderedStep& one) {
    const Step& step = *one.step;
    switch (step.verb) {
      case Verb::kFold:
        return reduce(one);
      case Verb::kCopy:
        return copy(step.srcs[0], ref_of(step.dsts));
      case Verb::kPush:
        return push(step.srcs[0]);
      case Verb::kSend:
        return send(one);
      case Verb::kRecv:
        return expect(step);
      case Verb::kArrive:
        return for_all_peers(DeviceVerb::kPost, ++barriers_);
      case Verb::kWait:
        return for_all_peers(DeviceVerb::kAwait, barriers_);
      case Verb::kPost:
        return flag(DeviceVerb::kPost, step.peer, slot_of(step.round == 0));
      case Verb::kAwait:
        return flag(DeviceVerb::kAwait, step.peer, slot_of(step.round == 0));
      case Verb::kEncode:
      case Verb::kDecode:
        break;
    }
    refuse("wire types, which kernels do not support");
  }

  // Sums the tensors of all ranks, the data that all ranks have pushed, or a partial sum and this rank's tensor.
  void reduce(const OrderedStep& one) {
    const Step& step = *one.step;
    const auto is_pushed = [](const Ref& ref) { return ref.space == Space::kPushed; };
    const Ref& result = step.dsts[0];
    if (std::any_of(step.srcs.begin(), step.srcs.end(), is_pushed)) {
      return append(DeviceVerb::kSumPushed, true, ref_of(step.srcs[lowered_.rank]), {}, ref_of(step.dsts), result);
    }
    const bool adds = step.srcs.size() == 2 && step.srcs[0].space == Space::kScratch;
    if (!adds) return append(DeviceVerb::kSum, true, ref_of(step.srcs), {}, ref_of(step.dsts), result);
    const OrderedStep* const sent = message_of(one);
    const DeviceRef to = sent ? arrival_of(*sent->step) : ref_of(step.dsts);
    append(DeviceVerb::kAdd, step.finish, ref_of(step.srcs[0]), ref_of(step.srcs[1]), to, result);
    if (sent) post_message(*sent->step);
  }

  void copy(const Ref& src, const DeviceRef& to) { append(DeviceVerb::kCopy, false, ref_of(src), {}, to, src); }

  void push(const Ref& src) {
    const DeviceRef to = {DeviceSpace::kPushed, kAllRanks, false, 0};
    lowered_.pushed_bytes = std::max(lowered_.pushed_bytes, 2 * plan::bytes_of(own_.plan, src));
    append(DeviceVerb::kPush, false, ref_of(src), {}, to, src);
  }

  void append(DeviceVerb verb, bool finish, const DeviceRef& from, const DeviceRef& addend, const DeviceRef& to,
              const Ref& counted) {
    if (counted.count == 0) return;
    for (const DeviceRef& ref : {from, to}) {
      if (ref.space == DeviceSpace::kStage) require_stage(plan::bytes_of(lowered_, ref, ref.offset + counted.count));
    }
    lowered_.steps.push_back({verb, finish, 0, 0, 0, from, addend, to, counted.count});
  }

  // ---- flags

  static DeviceSlot slot_of(bool first_round) { return first_round ? kEntrySlot : kExitSlot; }
  // The slot of a message. Each direction of a ring has its own, because the two advance independently.
  DeviceSlot slot_towards(int from, int to) const { return to == wrap(from + 1, lowered_.world) ? kUpSlot : kDownSlot; }

  void flag(DeviceVerb verb, int peer, DeviceSlot slot) {
    DeviceStep step;
    step.verb = verb;
    step.peer = static_cast<int8_t>(peer);
    step.slot = slot;
    step.value = ++(verb == DeviceVerb::kPost ? posted_ : awaited_)[peer][slot];
    lowered_.steps.push_back(step);
  }

  // Starts with the next rank.
  void for_all_peers(DeviceVerb verb, int barrier) {
    for (int k = 1; k < lowered_.world; ++k) {
      flag(verb, wrap(lowered_.rank + k, lowered_.world), slot_of(barrier == 1));
    }
  }

  // ---- messages

  const Sequence& sequence_of(int rank) {
    if (rank == lowered_.rank) return own_;
    Problem problem = problem_;
    problem.rank = rank;
    return others_.try_emplace(rank, plan_of_(problem)).first->second;
  }

  // The peer's receive that matches this send: sends and receives of a pair are in the same order.
  OrderedStep receive_of(const Step& send) {
    const std::vector<OrderedStep> sends = own_.find(Verb::kSend, send.peer);
    const auto number =
        std::find_if(sends.begin(), sends.end(), [&](const OrderedStep& one) { return one.step == &send; });
    return sequence_of(send.peer).find(Verb::kRecv, lowered_.rank).at(static_cast<size_t>(number - sends.begin()));
  }

  DeviceRef arrival_of(const Step& send) {
    DeviceRef to = ref_of(receive_of(send).step->dsts[0], sequence_of(send.peer).plan);
    to.rank = static_cast<int8_t>(send.peer);
    return to;
  }

  // The message that sends this partial sum, if no other step reads the sum.
  const OrderedStep* message_of(const OrderedStep& sum) const {
    if (sum.step->dsts[0].space != Space::kScratch) return nullptr;
    const OrderedStep* found = nullptr;
    for (const OrderedStep& one : own_.steps) {
      if (!waits_for(*one.step, sum.done)) continue;
      if (found || one.step->verb != Verb::kSend || !is_same(one.step->srcs[0], sum.step->dsts[0])) return nullptr;
      found = &one;
    }
    return found;
  }

  void send(const OrderedStep& one) {
    const Step& step = *one.step;
    if (std::find(sent_.begin(), sent_.end(), &step) != sent_.end()) return;
    copy(step.srcs[0], arrival_of(step));
    post_message(step);
  }

  void post_message(const Step& step) {
    sent_.push_back(&step);
    const bool is_last = own_.find(Verb::kSend, step.peer).back().step == &step;
    const bool is_implied = !is_last || !own_.find(Verb::kPost, step.peer).empty();  // by a later flag
    if (is_implied && !sequence_of(step.peer).is_awaited(receive_of(step).done)) return;
    flag(DeviceVerb::kPost, step.peer, slot_towards(lowered_.rank, step.peer));
  }

  // Every message has memory of its own to arrive in, so a sender never waits for room.
  void expect(const Step& step) {
    if (!step.after.empty()) refuse("messages that wait for room");
  }

  // Called before the first step that uses the message.
  void await_message(const After& after) {
    if (after.steps == 0) return;
    const Step& step = own_.plan.channels[after.channel].steps[after.steps - 1];
    if (step.verb != Verb::kRecv || awaited_receives_[after.channel] >= after.steps) return;
    awaited_receives_[after.channel] = after.steps;
    flag(DeviceVerb::kAwait, step.peer, slot_towards(step.peer, lowered_.rank));
  }

  // Waits for the last message of a sender, if it has a flag and no step waits for it.
  void await_last(const OrderedStep& one) {
    const Step& step = *one.step;
    if (step.verb != Verb::kRecv || own_.is_awaited(one.done) || !own_.find(Verb::kAwait, step.peer).empty()) return;
    if (own_.find(Verb::kRecv, step.peer).back().step == &step) await_message(one.done);
  }

  bool has_messages() const {
    return std::any_of(own_.steps.begin(), own_.steps.end(), [](const OrderedStep& one) {
      return one.step->verb == Verb::kSend || one.step->verb == Verb::kRecv;
    });
  }

  // ---- memory

  // One reference for refs[r] on every rank r, which must be the same place there; a single ref stays itself.
  DeviceRef ref_of(const std::vector<Ref>& refs) const {
    DeviceRef ref = ref_of(refs[0]);
    if (refs.size() == 1) return ref;
    if (refs.size() != static_cast<size_t>(lowered_.world)) refuse("steps on the tensors of some ranks only");
    for (int rank = 0; rank < lowered_.world; ++rank) {
      const DeviceRef other = ref_of(refs[static_cast<size_t>(rank)]);
      const int owner = other.rank == kOwnRank ? lowered_.rank : other.rank;
      if (owner != rank || other.space != ref.space || other.offset != ref.offset) {
        refuse("steps on different places in the tensors of different ranks");
      }
    }
    ref.rank = kAllRanks;
    return ref;
  }

  DeviceRef ref_of(const Ref& ref) const { return ref_of(ref, own_.plan); }

  DeviceRef ref_of(const Ref& ref, const Plan& plan) const {
    const bool wide = ref.form == Form::kWide;
    const int64_t at = ref.offset / size_of(wide ? wide_of(plan.dtype) : plan.dtype);
    const auto rank = static_cast<int8_t>(ref.index == plan.rank ? kOwnRank : ref.index);
    switch (ref.space) {
      case Space::kInput:
        return {DeviceSpace::kInput, kOwnRank, false, ref.index * problem_.count + at};
      case Space::kOutput:
        return {DeviceSpace::kOutput, kOwnRank, false, ref.index * problem_.count + at};
      case Space::kPeerInput:
        return {DeviceSpace::kInput, rank, false, at};
      case Space::kPeerOutput:
        return {DeviceSpace::kOutput, rank, false, at};
      case Space::kSlot:
        return {DeviceSpace::kStage, rank, false, at};
      case Space::kScratch:
        return {DeviceSpace::kStage, kOwnRank, wide, at};
      case Space::kPushed:
        break;
    }
    refuse("pushed data outside a sum");
  }

  void require_stage(int64_t bytes) { lowered_.stage_bytes = std::max(lowered_.stage_bytes, bytes); }

  // All ranks must cut tensors into the same pieces, so each needs the largest stage that any rank's plan needs.
  void require_stage_of_all() {
    for (int rank = 0; rank < lowered_.world; ++rank) {
      const Plan& plan = sequence_of(rank).plan;
      for (const OrderedStep& one : sequence_of(rank).steps) {
        if (one.step->verb != Verb::kRecv || one.step->dsts[0].space != Space::kScratch) continue;
        require_stage(one.step->dsts[0].offset + plan::bytes_of(plan, one.step->dsts[0]));
      }
    }
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::kInternal,
                "plan " + own_.plan.algorithm + " has " + what + ": it cannot be lowered to the steps of a kernel");
  }

  const Problem& problem_;
  const std::function<Plan(const Problem&)>& plan_of_;
  const Sequence own_;
  std::map<int, Sequence> others_;  // by rank, without this one
  DevicePlan lowered_;
  int barriers_ = 0;
  std::vector<int32_t> awaited_receives_;  // by channel: up to which step this rank has awaited receives
  std::vector<const Step*> sent_;          // messages whose data has been stored
  uint16_t posted_[kMaxDeviceRanks][kMaxDeviceSlots] = {}, awaited_[kMaxDeviceRanks][kMaxDeviceSlots] = {};
};

}  // namespace

DevicePlan lower(const Problem& problem, const std::function<Plan(const Problem&)>& plan_of) {
  return Lowering(problem, plan_of).build();
}

}  // namespace ringdp::plan
