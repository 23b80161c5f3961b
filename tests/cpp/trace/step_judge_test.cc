#include "trace/step_judge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ringdp::trace {
namespace {

using Ranks = std::vector<size_t>;

StepRow row_of(int64_t step, double exposed = 0) {
  return {.key = 10 * step, .number = step, .seconds = 0.020, .exposed = exposed, .communication = 0.020};
}

// Where something is so with this probability, the likelihood ratio of one step has at most the expectation 1.
TEST(Score, AStepByChanceIsNoEvidenceOnAverage) {
  for (const double chance : {0.0, 0.2, 1.0 / 3, 0.5}) {
    Score before;
    for (int step = 0; step < 2000; ++step) before.add(std::floor((step + 1) * chance) > std::floor(step * chance));
    while (before.value() < 3) before.add(true);  // from 0 nothing could be lost
    Score yes = before, no = before;
    yes.add(true);
    no.add(false);
    const double with = std::exp(yes.value() - before.value()), without = std::exp(no.value() - before.value());
    EXPECT_LE(chance * with + (1 - chance) * without, 1 + 1e-12) << chance;
    EXPECT_GT(with, 1);
    EXPECT_LT(without, 1);
  }
}

TEST(StepJudge, WaitsForAllThatReportAndKnowsEachStepOnce) {
  StepJudge judge(3);
  const Ranks two{0, 2};
  std::vector<StepJudge::Found> found;
  for (int64_t step = 1; step <= 64; ++step) {
    const std::vector<StepRow> late{row_of(step)}, waits{row_of(step, 0.010)};
    EXPECT_EQ(judge.add(0, waits), step == 1 ? -1 : 10 * (step - 1));
    judge.add(0, waits);
    EXPECT_EQ(judge.number_of(10 * step), step);
    EXPECT_TRUE(judge.judge(two).empty()) << "rank 2 has not reported";
    judge.add(2, late);
    EXPECT_EQ(judge.reached(two), 10 * step);
    for (StepJudge::Found& one : judge.judge(two)) found.push_back(std::move(one));
    EXPECT_EQ(judge.number_of(10 * step), 0) << "judged";
  }
  ASSERT_EQ(found.size(), 2u) << "24 steps each";
  EXPECT_EQ(found[0].late, 2u);
  ASSERT_EQ(found[0].recent.size(), StepJudge::kRecent);
  EXPECT_EQ(found[0].recent.back().rows.front().second.number, StepJudge::kWarmUp + 24);
}

TEST(StepJudge, BelievesWhatTheGroupCountsAndLeavesOutStepsWithoutIt) {
  StepJudge judge(3);
  const Ranks alone{0};
  std::vector<StepJudge::Found> found;
  for (int64_t step = 1; step <= 48; ++step) {
    judge.add(0, std::vector<StepRow>{row_of(step)});
    if (step % 2 == 0) judge.note_delay(10 * step, 1, 0.004);
    for (StepJudge::Found& one : judge.judge(alone)) found.push_back(std::move(one));
  }
  EXPECT_TRUE(found.empty());
  for (int64_t step = 49; step <= 60; ++step) {
    judge.add(0, std::vector<StepRow>{row_of(step)});
    judge.note_delay(10 * step, 1, 0.004);
    for (StepJudge::Found& one : judge.judge(alone)) found.push_back(std::move(one));
  }
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].late, 1u);
  EXPECT_EQ(found[0].recent.back().waits.size(), 3u);
}

TEST(StepJudge, ForgetsTheOldestWhereARankDoesNotComeAlong) {
  StepJudge judge(2);
  const Ranks both{0, 1};
  for (int64_t step = 1; step <= 2000; ++step) judge.add(0, std::vector<StepRow>{row_of(step)});
  EXPECT_TRUE(judge.judge(both).empty());
  EXPECT_EQ(judge.forgotten(), 10 * (2000 - 512));
  EXPECT_EQ(judge.number_of(10), 0);
  EXPECT_EQ(judge.number_of(20000), 2000);
}

TEST(StepRow, OnlyTimesAreTaken) {
  EXPECT_TRUE(are_times(std::vector<StepRow>{row_of(1), row_of(2, 0.5)}));
  for (const double wrong : {-1e-9, 1e9, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_FALSE(are_times(std::vector<StepRow>{row_of(1), row_of(2, wrong)})) << wrong;
  }
  StepRow none = row_of(1);
  none.seconds = 0;
  EXPECT_FALSE(are_times(std::vector<StepRow>{none}));
}

}  // namespace
}  // namespace ringdp::trace
