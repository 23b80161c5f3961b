// What the rounds of a hierarchy do in the memory that one host's ranks share, as device plans, for the search for races.
//
// Messages and folds run on each rank's stream: their accesses are told by copies from and to the rank's own stage, where
// none is its own; what is sent, which nobody else may touch, is copied onto itself.
#pragma once
#include <vector>

#include "plan/device_builder.h"
#include "plan/link_rounds.h"

namespace ringdp::plan::testing {

class HostPlan {
 public:
  HostPlan(const Plan& plan, int first, int members, int64_t count)
      : plan_(plan), builder_("hierarchy", problem(first, members, count), count, count) {}

  DevicePlan build() {
    for (const LinkRound& round : rounds_of(plan_)) {
      for (const Step& message : round.messages) {
        if (message.verb == Verb::kRecv) move(message);
        if (message.verb == Verb::kSend && message.srcs[0].space == Space::kOutput) send(message.srcs[0]);
      }
      for (const Step& step : round.steps) {
        if (step.verb == Verb::kWait) builder_.meet_all(meetings_++ == 0 ? kEntrySlot : kExitSlot);
        if (step.verb == Verb::kFold || step.verb == Verb::kCopy) move(step);
      }
    }
    return builder_.finish();
  }

 private:
  DeviceProblem problem(int first, int members, int64_t count) const {
    DeviceProblem found;
    found.dtype = plan_.dtype;
    found.rank = plan_.rank - first;
    found.world = members;
    found.count = count;
    return found;
  }
  void move(const Step& step) {
    for (const Ref& src : step.srcs) builder_.copy(ref_of(src), builder_.stage(0, kOwnRank, false), src.count);
    for (const Ref& dst : step.dsts) builder_.copy(builder_.stage(0, kOwnRank, false), ref_of(dst), dst.count);
  }
  void send(const Ref& ref) { builder_.copy(ref_of(ref), ref_of(ref), ref.count); }
  DeviceRef ref_of(const Ref& ref) const {
    const int64_t at = ref.offset / size_of(plan_.dtype);
    switch (ref.space) {
      case Space::kInput: return DeviceBuilder::input(at);
      case Space::kOutput: return DeviceBuilder::output(at);
      case Space::kPeerInput: return DeviceBuilder::input(at, ref.index);
      case Space::kPeerOutput: return DeviceBuilder::output(at, ref.index);
      default: return builder_.stage(0, kOwnRank, false);
    }
  }

  const Plan& plan_;
  DeviceBuilder builder_;
  int meetings_ = 0;
};

// Of the host's ranks, `members` from rank `first` on.
inline std::vector<DevicePlan> host_plans(const std::vector<Plan>& plans, int first, int members, int64_t count) {
  std::vector<DevicePlan> found;
  for (int m = 0; m < members; ++m) found.push_back(HostPlan(plans[first + m], first, members, count).build());
  return found;
}

}  // namespace ringdp::plan::testing
