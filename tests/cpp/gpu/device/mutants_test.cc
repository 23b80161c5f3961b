// What run_steps_test.cc would miss if it were blind: each thing that keeps plans right is taken away, and must show as
// wrong bits, or as a wait without end. Chance decides when, so a mutant runs again with other seeds until it is
// caught. Flags one by one are taken away in tests/cpp/plan/device_check_test.cc and device_race_test.cc, where no
// chance is needed.
#include <gtest/gtest.h>

#include "gpu/device/host_run.h"

namespace ringdp::gpu::testing {
namespace {

using plan::Collective;
using plan::DeviceAlgorithm;
using plan::DeviceStep;
using plan::DeviceVerb;

constexpr uint32_t kSeeds = 300;

// TSan stops at the races that mutants have, and rightly.
class Mutants : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "mutants race";
#endif
  }
};

// The collective three times, so that each can meet what the one before has left.
template <class Break>
::testing::AssertionResult is_caught(const plan::testing::DeviceKind& kind, Break take_away, HostLayout layout = {}) {
  Collected one;
  one.kind = kind;
  one.packs = 48;
  one.segment_bytes = 16 * kPackBytes;  // so that all threads have work
  for (layout.seed = 1; layout.seed <= kSeeds; ++layout.seed) {
    HostRun run(layout, {one, one, one});
    take_away(run);
    if (!run.run().empty()) return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << text_of(kind) << " lives on after " << kSeeds << " runs";
}

// All flags of a slot, on both sides.
auto without_slot(int slot) {
  return [slot](HostRun& run) {
    for (Launch& launch : run.launches()) {
      for (plan::DevicePlan& plan : launch.plans) {
        std::vector<DeviceStep> kept;
        for (const DeviceStep& step : plan.steps) {
          if (!plan::is_flag(step) || step.slot != slot) kept.push_back(step);
        }
        plan.steps = kept;
      }
    }
  };
}

TEST_F(Mutants, WithoutTheEntry) {
  for (const Collective what :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce, Collective::kGather}) {
    EXPECT_TRUE(is_caught({DeviceAlgorithm::kDirect, what}, without_slot(plan::kEntrySlot))) << name_of(what);
  }
  for (const Collective what : {Collective::kAllReduce, Collective::kReduce}) {
    EXPECT_TRUE(is_caught({DeviceAlgorithm::kOneShot, what}, without_slot(plan::kEntrySlot))) << name_of(what);
  }
}

TEST_F(Mutants, WithoutTheExit) {
  for (const Collective what :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather, Collective::kAllToAll,
        Collective::kReduce, Collective::kGather, Collective::kScatter}) {
    EXPECT_TRUE(is_caught({DeviceAlgorithm::kDirect, what}, without_slot(plan::kExitSlot))) << name_of(what);
  }
  EXPECT_TRUE(is_caught({DeviceAlgorithm::kOneShot, Collective::kReduce}, without_slot(plan::kExitSlot)));
}

TEST_F(Mutants, WithoutTheFlagsOfARing) {
  for (const DeviceAlgorithm algorithm : {DeviceAlgorithm::kRankRing, DeviceAlgorithm::kRotatedRing}) {
    for (const int slot : {plan::kUpSlot, plan::kDownSlot}) {
      HostLayout layout;
      layout.world = 3;
      EXPECT_TRUE(is_caught({algorithm, Collective::kAllReduce}, without_slot(slot), layout)) << slot;
    }
  }
}

TEST_F(Mutants, WithoutTheBlocksSync) {
  HostLayout layout;
  layout.hostility.syncs = false;
  layout.threads = 4;
  const auto nothing = [](HostRun&) {};
  EXPECT_TRUE(is_caught({DeviceAlgorithm::kDirect, Collective::kAllReduce}, nothing, layout));
  EXPECT_TRUE(is_caught({DeviceAlgorithm::kRankRing, Collective::kAllReduce}, nothing, layout));
}

TEST_F(Mutants, WithARankLeftOutOfTheSum) {
  for (const DeviceAlgorithm algorithm : {DeviceAlgorithm::kDirect, DeviceAlgorithm::kOneShot}) {
    const auto leave_out = [](HostRun& run) {
      for (Launch& launch : run.launches()) launch.kernel = sum_kernel(DType::kF32, 1);
    };
    for (const Collective what : {Collective::kAllReduce, Collective::kReduce}) {
      EXPECT_TRUE(is_caught({algorithm, what}, leave_out)) << name_of(what);
    }
  }
}

// pushed_part() takes the other parity's part to be `world` parts on. Who is behind waits for marks that are gone.
TEST_F(Mutants, WithOnePartForBothParities) {
  HostLayout layout;
  layout.deadline_ns = 50'000'000;
  const auto one_part = [](HostRun& run) {
    run.mutate = [](Work& work) { work.world = 0; };
  };
  EXPECT_TRUE(is_caught({DeviceAlgorithm::kPush, Collective::kAllReduce}, one_part, layout));
}

// A mark that does not change lets through what the epoch before last has left.
TEST_F(Mutants, WithMarksThatStayTheSame) {
  const auto same_marks = [](HostRun& run) {
    run.mutate = [](Work& work) { work.epoch->launches = 0; };
  };
  EXPECT_TRUE(is_caught({DeviceAlgorithm::kPush, Collective::kAllReduce}, same_marks));
}

}  // namespace
}  // namespace ringdp::gpu::testing
