// What the rounds of a hierarchy do in the memory that one host's ranks share, as device plans, for the search for
// races.
//
// Messages and folds run on each rank's stream: their accesses are told by copies from and to the rank's own slot,
// where none is its own; what is sent, which no other rank may touch, is copied onto itself.
#pragma once
#include <vector>

#include "device/plan/link_rounds.h"
#include "device/plan/lower.h"
#include "plan/builder.h"

namespace ringdp::plan::testing {

class HostPlan {
 public:
  HostPlan(const Plan& plan, int first, int members, int64_t count)
      : plan_(plan), problem_(problem(plan, first, members, count)) {}

  DevicePlan build() const {
    return lower(problem_, [this](const Problem& problem) { return write(problem); });
  }

 private:
  static Problem problem(const Plan& plan, int first, int members, int64_t count) {
    Problem found;
    found.dtype = plan.dtype;
    found.rank = plan.rank - first;
    found.world = members;
    found.count = count;
    found.on_device = found.in_heaps = true;
    return found;
  }

  Plan write(const Problem& problem) const {
    Builder builder("hierarchy", problem);
    const int channel = builder.add_channel("device");
    const auto move = [&](const Step& step) {
      const auto stage = [&](const Ref& like) { return builder.slot(problem.rank, 0, 0, like.count); };
      for (const Ref& src : step.srcs)
        builder.copy(channel, src.space == Space::kScratch ? stage(src) : src, stage(src));
      for (const Ref& dst : step.dsts)
        builder.copy(channel, stage(dst), dst.space == Space::kScratch ? stage(dst) : dst);
    };
    for (const LinkRound& round : rounds_of(plan_)) {
      for (const Step& message : round.messages) {
        if (message.verb == Verb::kRecv) move(message);
        const bool sends_result = message.verb == Verb::kSend && message.srcs[0].space == Space::kOutput;
        if (sends_result) builder.copy(channel, message.srcs[0], message.srcs[0]);
      }
      for (const Step& step : round.steps) {
        if (step.verb == Verb::kArrive) builder.arrive(channel);
        if (step.verb == Verb::kWait) builder.wait(channel);
        if (step.verb == Verb::kFold || step.verb == Verb::kCopy) move(step);
      }
    }
    return builder.finish();
  }

  const Plan& plan_;
  const Problem problem_;
};

// Of the host's ranks, `members` from rank `first` on.
inline std::vector<DevicePlan> host_plans(const std::vector<Plan>& plans, int first, int members, int64_t count) {
  std::vector<DevicePlan> found;
  for (int m = 0; m < members; ++m) found.push_back(HostPlan(plans[first + m], first, members, count).build());
  return found;
}

}  // namespace ringdp::plan::testing
