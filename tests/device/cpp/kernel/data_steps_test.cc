// How many packs a thread has in flight. What it sums, and with which bits: run_steps_test.cc, element_test.cc.
#include "device/kernel/data_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "device/cpp/kernel/host_prim.h"

namespace ringdp::gpu::testing {
namespace {

// The one thread of one block, which tells what it loads and stores.
struct Told {
  inline static std::string story;

  static int block() { return 0; }
  static int thread() { return 0; }
  static int threads() { return 1; }
  static Pack load(const Pack* from) { return story += 'l', *from; }
  static void store(Pack* to, Pack pack) { story += 's', *to = pack; }
};

constexpr int kPacks = 24;

plan::DeviceStep step_of(DType dtype) {
  plan::DeviceStep step;
  step.from.rank = step.to.rank = plan::kOwnRank;
  step.addend.space = plan::DeviceSpace::kInput;
  step.to.space = plan::DeviceSpace::kOutput;
  step.count = kPacks * kPackBytes / size_of(dtype);
  return step;
}

// How many loads come before the first store; everything is loaded once for each of `sources`.
template <class Run>
int loads_at_once(int sources, Run run) {
  std::vector<Pack> input(2 * kPacks), output(2 * kPacks);
  WorkHead work{};
  work.blocks = work.world = 1;
  for (char*& tensor : work.input) tensor = reinterpret_cast<char*>(input.data());
  for (char*& tensor : work.output) tensor = reinterpret_cast<char*>(output.data());
  Told::story.clear();
  run(work);
  EXPECT_EQ(std::count(Told::story.begin(), Told::story.end(), 'l'), sources * kPacks);
  return static_cast<int>(Told::story.find('s'));
}

void expect_many(int loads, const std::string& what) {
  EXPECT_GT(loads, kPacksInFlight / 2) << what;
  EXPECT_LE(loads, kPacksInFlight) << what;
}

template <int kRanks>
void expect_many_of_a_sum() {
  plan::DeviceStep step = step_of(DType::kF32);
  step.from.rank = plan::kAllRanks;
  const int loads =
      loads_at_once(kRanks, [&](const WorkHead& work) { sum_step<Told, float, Sum, kRanks>(work, step); });
  expect_many(loads, "a sum of " + std::to_string(kRanks));
}

TEST(DataSteps, ASumHasTheTensorsOfAllRanksInFlight) {
  expect_many_of_a_sum<2>();
  expect_many_of_a_sum<3>();
  expect_many_of_a_sum<5>();
  expect_many_of_a_sum<8>();
}

TEST(DataSteps, ACopyHasSeveralPacksInFlight) {
  const plan::DeviceStep step = step_of(DType::kF32);
  expect_many(loads_at_once(1, [&](const WorkHead& work) { copy_step<Told, float, 1>(work, step); }), "a copy");
}

TEST(DataSteps, SoHasAnAdditionToAPartialSum) {
  const plan::DeviceStep floats = step_of(DType::kF32);
  plan::DeviceStep raw = step_of(DType::kBF16), wide = raw;
  raw.finish = wide.finish = true;
  wide.from.wide = true;
  expect_many(loads_at_once(2, [&](auto& work) { add_step<Told, float, Sum, false>(work, floats); }), "float32");
  expect_many(loads_at_once(2, [&](auto& work) { add_step<Told, BFloat16, Sum, false>(work, raw); }), "bfloat16");
  expect_many(loads_at_once(3, [&](auto& work) { add_step<Told, BFloat16, Sum, true>(work, wide); }), "wide");
}

}  // namespace
}  // namespace ringdp::gpu::testing
