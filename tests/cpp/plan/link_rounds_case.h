// Rounds of all ranks, run by the simulator of plans: a round begins when all of the one before is over on that rank.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness.h"
#include "plan/link_rounds.h"

namespace ringdp::plan::testing {

// The plan whose lanes do what a stream does with these rounds.
inline Plan plan_of_rounds(Plan plan, const std::vector<LinkRound>& rounds) {
  std::map<std::pair<Verb, int>, size_t> lane_of;
  plan.lanes = {{"steps", {}}};
  std::vector<After> over;  // what the round before has to have done
  for (const LinkRound& round : rounds) {
    for (const Step& step : round.ahead) plan.lanes[0].steps.push_back(step);
    if (!round.ahead.empty()) over = {{0, static_cast<int32_t>(plan.lanes[0].steps.size())}};
    for (Step message : round.messages) {
      const auto [found, is_new] = lane_of.try_emplace({message.verb, message.peer}, plan.lanes.size());
      if (is_new) plan.lanes.push_back({"messages", {}});
      message.after = over;
      plan.lanes[found->second].steps.push_back(std::move(message));
    }
    std::vector<After> came;
    for (size_t lane = 0; lane < plan.lanes.size(); ++lane) {
      came.push_back({static_cast<int32_t>(lane), static_cast<int32_t>(plan.lanes[lane].steps.size())});
    }
    for (Step step : round.steps) {
      step.after = came;
      plan.lanes[0].steps.push_back(std::move(step));
    }
    came[0].steps = static_cast<int32_t>(plan.lanes[0].steps.size());
    over = came;
  }
  return plan;
}

// Runs the rounds of `plans`, all ranks' of `c`; every result must equal the oracle's.
inline void check_rounds(const Case& c, const std::vector<Plan>& plans) {
  std::vector<Plan> grouped;
  for (const Plan& plan : plans) grouped.push_back(plan_of_rounds(plan, rounds_of(plan)));
  std::vector<Tensors> start;
  for (int r = 0; r < c.problem.world; ++r) start.emplace_back(c, r);
  std::vector<Tensors> tensors = start;
  Simulator simulator(c.problem.world, c.link_bytes, /*slot_bytes=*/64, c.seed, c.problem.hosts);
  for (size_t r = 0; r < tensors.size(); ++r) simulator.add(static_cast<int>(r), tensors[r].job(grouped[r]));
  ASSERT_EQ(simulator.run(), "") << text_of(c);
  for (int r = 0; r < c.problem.world; ++r) {
    const std::vector<Bytes> want = expected(c, start, r);
    for (size_t k = 0; k < want.size(); ++k) {
      ASSERT_TRUE(tensors[r].result(k) == want[k]) << text_of(c) << ": rank " << r << ", output " << k;
    }
    ASSERT_TRUE(tensors[r].kept_inputs_of(start[r])) << text_of(c) << ": inputs of rank " << r << " were written";
  }
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
