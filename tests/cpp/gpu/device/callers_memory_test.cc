// Work on callers' own memory, in which nobody copies a result to safety: what is over touches nothing, and whoever gives up
// makes all results void before its caller can change what peers still read.
#include <gtest/gtest.h>

#include "gpu/device/host_run.h"

namespace ringdp::gpu::testing {
namespace {

void be_in_place(HostGroup& group, int world) {
  group.mutate = [&group, world](Work& work) {
    for (int r = 0; r < world; ++r) work.aborts[r] = &group.rank(r).abort;
  };
}

bool is_touched(HostGroup& group, const HostLayout& layout, const Launch& launch) {
  bool touched = false;
  for (int r = 0; r < layout.world; ++r) {
    const plan::DevicePlan& plan = launch.plans[r];
    const char* const output = group.output(r, 0);
    touched |= std::any_of(output, output + plan.output * size_of(plan.dtype), [](char byte) { return byte != 0x11; });
  }
  return touched;
}

// As a stream runs it, a step at a time: its waits were released, so it comes to the sum though nobody has brought anything.
Launch released(const HostLayout& layout) {
  Launch launch = launch_of(layout, Collected{});
  for (plan::DevicePlan& plan : launch.plans) {
    const auto is_flag = [](const plan::DeviceStep& step) {
      return step.verb == plan::DeviceVerb::kPost || step.verb == plan::DeviceVerb::kAwait;
    };
    plan.steps.erase(std::remove_if(plan.steps.begin(), plan.steps.end(), is_flag), plan.steps.end());
  }
  return launch;
}

bool writes_after_the_end(bool in_place) {
  HostLayout layout;
  layout.world = 3;
  const Launch launch = released(layout);
  HostGroup group(layout, {launch});
  if (in_place) be_in_place(group, layout.world);
  for (int r = 0; r < layout.world; ++r) {
    std::memset(group.output(r, 0), 0x11, launch.plans[r].output * size_of(launch.plans[r].dtype));
  }
  group.abort_all();
  group.run();
  for (int r = 0; r < layout.world; ++r) EXPECT_EQ(group.rank(r).epoch.launches, 1u) << "counted all the same";
  return is_touched(group, layout, launch);
}

TEST(CallersMemory, AStreamThatWasReleasedTouchesNothing) {
  EXPECT_FALSE(writes_after_the_end(true));
  EXPECT_TRUE(writes_after_the_end(false)) << "in a window it would: the test sees it";
}

TEST(CallersMemory, WhoGivesUpMakesAllResultsVoid) {
  for (const bool in_place : {true, false}) {
    HostLayout layout;
    layout.world = 3;
    layout.left_out = 2;
    layout.deadline_ns = 50'000'000;
    HostGroup group(layout, launches_of(layout, {Collected{}}));
    if (in_place) be_in_place(group, layout.world);
    group.run();
    EXPECT_EQ(group.rank(0).abort, 1u);
    EXPECT_EQ(group.rank(2).abort, in_place ? 1u : 0u) << "it has not even begun";
  }
}

TEST(CallersMemory, WhatIsNotOverHasTheBitsOfTheSerialFold) {
  HostLayout layout;
  layout.world = 4;
  Collected one;
  one.in_place = true;
  HostRun run(layout, {one, one, one});
  std::vector<uint32_t> aborts(static_cast<size_t>(layout.world));
  run.mutate = [&](Work& work) {
    for (int r = 0; r < layout.world; ++r) work.aborts[r] = &aborts[static_cast<size_t>(r)];
  };
  EXPECT_EQ(run.run(), "");
  EXPECT_EQ(aborts, std::vector<uint32_t>(4));
}

}  // namespace
}  // namespace ringdp::gpu::testing
