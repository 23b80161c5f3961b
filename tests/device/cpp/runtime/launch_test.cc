// What a kernel is given is what its plan and everybody's addresses say.
#include "device/runtime/launch.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/error.h"
#include "device/plan/catalog.h"
#include "device/runtime/check_work.h"

namespace ringdp::gpu {

namespace {

struct TwoRanks {
  alignas(128) char window[2][4096], stage[2][1024], pushed[2][1024];
  Flags flags[2];
  Epoch epoch;
  uint32_t abort;
  Expired expired;

  Addresses addresses() {
    Addresses found;
    for (int r = 0; r < 2; ++r) {
      found.window[r] = window[r];
      found.stage[r] = stage[r];
      found.pushed[r] = pushed[r];
      found.flags[r] = &flags[r];
    }
    found.pushed_bytes = 256;
    found.epoch = &epoch;
    found.abort = &abort;
    found.expired = &expired;
    return found;
  }
};

plan::DevicePlan plan_of(plan::Collective what) {
  plan::Problem problem;
  problem.what = what;
  problem.rank = 1;
  problem.world = 2;
  problem.count = 64;
  return plan::make_device_plan(plan::DeviceAlgorithm::kDirect, problem);
}

TEST(Launch, EveryAddressIsWhereItBelongs) {
  const auto memory = std::make_unique<TwoRanks>();
  const plan::DevicePlan plan = plan_of(plan::Collective::kAllGather);
  LaunchFacts facts = {16, 512, 3.0, 1000, 5, 9, true};
  facts.spans_devices = true;
  const Work work = work_of(plan, memory->addresses(), facts);
  check_work(work, plan.dtype);
  check_stream_work(work);
  EXPECT_EQ(work.rank, 1);
  EXPECT_EQ(work.world, 2);
  EXPECT_EQ(work.blocks, 5);
  EXPECT_EQ(work.stream_epoch, 9u);
  EXPECT_EQ(work.captured, 1);
  EXPECT_EQ(work.spans_devices, 1);
  EXPECT_EQ(work.deadline_ns, 1000u);
  EXPECT_EQ(work.divisor, 3.0);
  ASSERT_EQ(work.steps, static_cast<int>(plan.steps.size()));
  for (int s = 0; s < work.steps; ++s) EXPECT_EQ(plan::text_of(work.step[s]), plan::text_of(plan.steps[s]));
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(work.input[r], memory->window[r] + 16);
    EXPECT_EQ(work.output[r], memory->window[r] + 512);
    EXPECT_EQ(work.stage[r], memory->stage[r]);
    EXPECT_EQ(work.pushed[r], memory->pushed[r]);
    EXPECT_EQ(work.flags[r], &memory->flags[r]);
  }
  EXPECT_EQ(work.abort, &memory->abort);
  EXPECT_EQ(work.expired, &memory->expired);
}

TEST(Launch, AllButRingsHaveFewSteps) {
  for (int a = 0; a < plan::kDeviceAlgorithmCount; ++a) {
    const auto algorithm = static_cast<plan::DeviceAlgorithm>(a);
    for (int c = 0; c < plan::kCollectiveCount; ++c) {
      plan::Problem problem;
      problem.what = static_cast<plan::Collective>(c);
      problem.world = plan::kMaxDeviceRanks;
      problem.count = problem.what == plan::Collective::kBarrier ? 0 : int64_t{1} << 24;
      const bool is_ring =
          algorithm == plan::DeviceAlgorithm::kRankRing || algorithm == plan::DeviceAlgorithm::kRotatedRing;
      if (is_ring || !plan::can_plan(algorithm, problem.what)) continue;
      const plan::DevicePlan plan = plan::make_device_plan(algorithm, problem);
      EXPECT_LE(plan.steps.size(), static_cast<size_t>(kFewSteps)) << plan::text_of(plan);
    }
  }
}

TEST(Launch, InputsMayLieBehindOneAnother) {
  const auto memory = std::make_unique<TwoRanks>();
  Addresses addresses = memory->addresses();
  addresses.aborts[0] = addresses.aborts[1] = &memory->abort;
  const plan::DevicePlan plan = plan_of(plan::Collective::kAllGather);
  const Work work = work_of(plan, addresses, {32, 32, 0, 1000, 1, 1, false, 256});
  check_work(work, plan.dtype);
  EXPECT_EQ(work.input[0], memory->window[0] + 32);
  EXPECT_EQ(work.input[1], memory->window[1] + 32 + 256);
  EXPECT_EQ(work.output[1], memory->window[1] + 32);
  EXPECT_EQ(work.aborts[1], &memory->abort);
}

TEST(Launch, OwnTensorsReplaceThisRanksWindowOnly) {
  const auto memory = std::make_unique<TwoRanks>();
  alignas(16) char input[16], output[16];
  LaunchFacts facts = {16, 512, 0, 1000, 1, 1};
  facts.own_input = input;
  facts.own_output = output;
  const Work work = work_of(plan_of(plan::Collective::kAllReduce), memory->addresses(), facts);
  EXPECT_EQ(work.input[1], input);
  EXPECT_EQ(work.output[1], output);
  EXPECT_EQ(work.input[0], memory->window[0] + 16);
  EXPECT_EQ(work.output[0], memory->window[0] + 512);
}

TEST(Launch, AStepReplacesTheGradientsOfOthers) {
  const auto memory = std::make_unique<TwoRanks>();
  alignas(16) float own[4], state[2][4];
  StepFacts facts;
  facts.at = 32;
  facts.count = 3;
  facts.divisor = 2;
  facts.parameters = own;
  for (int k = 0; k < 2; ++k) facts.state[k] = state[k];
  const AdamWork work = adam_work_of(1, 2, memory->addresses(), facts);
  check_adam_work(work);
  EXPECT_EQ(work.count, 3);
  EXPECT_EQ(work.divisor, 2);
  EXPECT_EQ(work.parameters[1], own);
  EXPECT_EQ(work.state[1], state[1]);
  EXPECT_EQ(work.abort, &memory->abort);
  EXPECT_EQ(work.epoch, &memory->epoch);
  for (int r = 0; r < 2; ++r) EXPECT_EQ(work.gradients[r], reinterpret_cast<float*>(memory->window[r] + 32));
  EXPECT_EQ(work.parameters[0], work.gradients[0]);
  facts.gives = false;
  EXPECT_EQ(adam_work_of(1, 2, memory->addresses(), facts).parameters[0], nullptr);
}

TEST(Launch, WhoIsNotReachedHasNoAddress) {
  const auto memory = std::make_unique<TwoRanks>();
  Addresses addresses = memory->addresses();
  addresses.window[0] = nullptr;
  const plan::DevicePlan plan = plan_of(plan::Collective::kAllReduce);
  const Work work = work_of(plan, addresses, {16, 512, 0, 1000, 1, 1});
  EXPECT_EQ(work.input[0], nullptr);
  EXPECT_EQ(work.output[0], nullptr);
  EXPECT_THROW(check_work(work, plan.dtype), Error) << "a plan that needs it is not run";
}

}  // namespace

// Who is waited for, and the end of waiting, over flags that are written in every order.

namespace {

using plan::DeviceStep;
using plan::DeviceVerb;

DeviceStep await(int peer, int slot, int value) {
  DeviceStep step;
  step.verb = DeviceVerb::kAwait;
  step.peer = static_cast<int8_t>(peer);
  step.slot = static_cast<uint8_t>(slot);
  step.value = static_cast<uint16_t>(value);
  return step;
}

struct Launch {
  Launched launched = {nullptr, 5};
  std::unique_ptr<Flags> flags = std::make_unique<Flags>();

  Launch() {
    plan::DevicePlan plan;
    plan.rank = 1;
    plan.world = 4;
    plan.steps.resize(4);
    plan.steps[0].verb = DeviceVerb::kPost;
    plan.steps[1] = await(0, plan::kEntrySlot, 1);
    plan.steps[2].verb = DeviceVerb::kSum;
    plan.steps[3] = await(3, plan::kExitSlot, 2);
    launched.plan = std::make_shared<const plan::DevicePlan>(plan);
  }
  void write(size_t step, uint64_t epoch, uint64_t value) {
    const DeviceStep& s = launched.plan->steps[step];
    flags->of[s.slot][0][s.peer].value = epoch * kValuesPerEpoch + value;
  }
};

TEST(StreamFlags, TheFirstWaitThatHasNotComeIsNamed) {
  Launch launch;
  auto waited = waited_for(launch.launched, *launch.flags);
  ASSERT_TRUE(waited);
  EXPECT_EQ(waited->peer, 0);
  EXPECT_EQ(waited->step, 1);
  EXPECT_EQ(waited->wanted, 5 * kValuesPerEpoch + 1);
  EXPECT_EQ(waited->seen, 0u);
  launch.write(1, 5, 1);
  waited = waited_for(launch.launched, *launch.flags);
  ASSERT_TRUE(waited);
  EXPECT_EQ(waited->peer, 3);
  EXPECT_EQ(waited->slot, plan::kExitSlot);
  launch.write(3, 5, 2);
  EXPECT_FALSE(waited_for(launch.launched, *launch.flags));
}

TEST(StreamFlags, AnEarlierLaunchOrAnEarlierValueIsNotEnough) {
  Launch launch;
  launch.write(1, 4, 1);
  EXPECT_EQ(waited_for(launch.launched, *launch.flags)->peer, 0);
  launch.write(1, 6, 1);
  launch.write(3, 5, 1);
  EXPECT_EQ(waited_for(launch.launched, *launch.flags)->peer, 3);
}

TEST(StreamFlags, ReleasedIsReleasedForGood) {
  Launch launch;
  release_waits(*launch.flags);
  EXPECT_FALSE(waited_for(launch.launched, *launch.flags));
  launch.launched.epoch = uint64_t{1} << 50;
  EXPECT_FALSE(waited_for(launch.launched, *launch.flags));
}

// cuStreamWaitValue64 with GEQ: the difference as a signed number.
TEST(StreamFlags, TheDevicesCyclicCompareAgrees) {
  Launch launch;
  release_waits(*launch.flags);
  for (const uint64_t epoch : {uint64_t{1}, uint64_t{5}, uint64_t{1} << 50}) {
    const uint64_t wanted = epoch * kValuesPerEpoch + 1;
    EXPECT_GE(static_cast<int64_t>(launch.flags->of[0][0][0].value - wanted), 0) << epoch;
  }
}

}  // namespace

}  // namespace ringdp::gpu
