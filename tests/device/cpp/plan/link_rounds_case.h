// Rounds of all ranks, run by the simulator of plans: a round begins when all of the one before is over on that rank.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "device/plan/link_rounds.h"
#include "plan/harness.h"

namespace ringdp::plan::testing {

// The plan whose channels do what a stream does with these rounds.
inline Plan plan_of_rounds(Plan plan, const std::vector<LinkRound>& rounds) {
  std::map<std::pair<Verb, int>, size_t> channel_of;
  plan.channels = {{"steps", {}}};
  std::vector<After> over;  // what the round before has to have done
  for (const LinkRound& round : rounds) {
    for (const Step& step : round.ahead) plan.channels[0].steps.push_back(step);
    if (!round.ahead.empty()) over = {{0, static_cast<int32_t>(plan.channels[0].steps.size())}};
    for (Step message : round.messages) {
      const auto [found, is_new] = channel_of.try_emplace({message.verb, message.peer}, plan.channels.size());
      if (is_new) plan.channels.push_back({"messages", {}});
      message.after = over;
      plan.channels[found->second].steps.push_back(std::move(message));
    }
    std::vector<After> came;
    for (size_t channel = 0; channel < plan.channels.size(); ++channel) {
      came.push_back({static_cast<int32_t>(channel), static_cast<int32_t>(plan.channels[channel].steps.size())});
    }
    for (Step step : round.steps) {
      step.after = came;
      plan.channels[0].steps.push_back(std::move(step));
    }
    came[0].steps = static_cast<int32_t>(plan.channels[0].steps.size());
    over = came;
  }
  return plan;
}

// Runs the rounds of `plans`, all ranks' of `c`; every result must equal the oracle's.
inline void check_rounds(const Case& c, const std::vector<Plan>& plans) {
  std::vector<Plan> grouped;
  for (const Plan& plan : plans) grouped.push_back(plan_of_rounds(plan, rounds_of(plan)));
  Case without_slots = c;
  without_slots.problem.slot_bytes = 64;
  check_sequence({without_slots}, {grouped});
}

// Both ends of every message are in rounds of the same number, and as long.
inline void check_ends_meet(const Case& c, const std::vector<Plan>& plans) {
  using Lengths = std::map<std::tuple<size_t, int, int>, std::vector<int64_t>>;  // by round, sender, receiver
  Lengths sent, received;
  for (const Plan& plan : plans) {
    const std::vector<LinkRound> rounds = rounds_of(plan);
    for (size_t n = 0; n < rounds.size(); ++n) {
      for (const Step& step : rounds[n].messages) {
        if (step.verb == Verb::kSend) sent[{n, plan.rank, step.peer}].push_back(bytes_of(plan, step.srcs[0]));
        if (step.verb == Verb::kRecv) received[{n, step.peer, plan.rank}].push_back(bytes_of(plan, step.dsts[0]));
      }
    }
  }
  ASSERT_TRUE(sent == received) << text_of(c);
}

}  // namespace ringdp::plan::testing
