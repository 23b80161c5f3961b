// The text of the fused step's kernel, thread by thread on the host: the bits of the CPU's step on the mean.
#include "device/kernel/adam.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "device/cpp/kernel/host_run.h"
#include "kernels/dispatch.h"

namespace ringdp::gpu {
namespace {

struct AdamPrimitives : testing::InTurn {
  static float fma(float a, float b, float c) { return std::fma(a, b, c); }
  static float root(float value) { return std::sqrt(value); }
};

template <int kRanks = 1>
void run(const AdamWork& work) {
  if (work.world != kRanks) {
    if constexpr (kRanks < plan::kMaxDeviceRanks) run<kRanks + 1>(work);
    return;
  }
  testing::run_in_turn([&] { run_adam<AdamPrimitives, kRanks>(work); });
}

// Floats whose memory starts at a pack, as the kernel wants it.
using Floats = std::vector<float>;

Floats spread(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

Floats squared(Floats values) {
  for (float& value : values) value *= value;
  return values;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

struct Trained {
  Floats parameters, state[3];
};

Trained fresh(int64_t count) {
  return {spread(count, 1), {spread(count, 2), squared(spread(count, 3)), squared(spread(count, 4))}};
}

// The shard of the last rank of a world, stepped by the kernel's text. Memory goes on to the end of the last pack.
struct World {
  int64_t count, packed;
  std::vector<Floats> gradients, parameters;
  Trained trained;
  uint32_t abort = 0;
  Epoch epoch = {};

  World(int world, int64_t elements) : count(elements), packed((elements + 3) / 4 * 4), trained(fresh(packed)) {
    for (int r = 0; r < world; ++r) {
      gradients.push_back(spread(packed, 10 + r));
      parameters.push_back(trained.parameters);
    }
  }
  AdamWork work(const kernels::AdamScalars& scalars, double divisor) {
    AdamWork work{};
    work.world = static_cast<int>(gradients.size());
    work.rank = work.world - 1;
    work.count = count;
    work.divisor = divisor;
    work.scalars = scalars;
    work.abort = &abort;
    work.epoch = &epoch;
    for (int r = 0; r < work.world; ++r) {
      work.gradients[r] = gradients[r].data();
      work.parameters[r] = parameters[r].data();
    }
    for (int k = 0; k < 3; ++k) work.state[k] = trained.state[k].data();
    return work;
  }
  void step(const kernels::AdamScalars& scalars, double divisor) { run(work(scalars, divisor)); }
  Floats mean(double divisor) const {
    Floats sum = gradients[0];
    for (size_t r = 1; r < gradients.size(); ++r) {
      for (int64_t i = 0; i < count; ++i) sum[i] += gradients[r][i];
    }
    for (float& value : sum) value = divisor != 0 ? value / static_cast<float>(divisor) : value;
    return sum;
  }
};

void step_on_the_cpu(const kernels::AdamSettings& settings, double number, const Floats& mean, int64_t count,
                     Trained& t) {
  const kernels::StepArrays arrays{
      t.parameters.data(), mean.data(), {t.state[0].data(), t.state[1].data(), t.state[2].data()}, count};
  kernels::adam_step_with(kernels::scalar_fma_step_kernels(), settings, arrays, number, nullptr);
}

void expect_the_bits_of_the_cpu(int ranks, int64_t count, const kernels::AdamSettings& settings, double divisor) {
  World world(ranks, count);
  Trained expected = world.trained;
  for (int number = 1; number <= 3; ++number) {
    world.step(kernels::scalars_of(settings, number), divisor);
    step_on_the_cpu(settings, number, world.mean(divisor), count, expected);
  }
  for (const Floats& parameters : world.parameters) EXPECT_TRUE(same_bits(parameters, expected.parameters)) << ranks;
  for (int k = 0; k < 3; ++k) EXPECT_TRUE(same_bits(world.trained.state[k], expected.state[k])) << ranks << " " << k;
}

constexpr kernels::AdamSettings kAdamW{1e-2, 0.9, 0.999, 1e-8, 0.1, true, false, false};

TEST(Adam, EveryNumberOfRanksGivesTheBitsOfTheCpu) {
  for (int ranks = 1; ranks <= plan::kMaxDeviceRanks; ++ranks) {
    for (const int64_t count : {0, 1, 3, 4, 60, 61, 1023, 1024}) {
      expect_the_bits_of_the_cpu(ranks, count, kAdamW, ranks);
    }
  }
}

TEST(Adam, EverySettingGivesTheBitsOfTheCpu) {
  for (const bool decoupled : {false, true}) {
    for (const bool amsgrad : {false, true}) {
      for (const bool maximize : {false, true}) {
        for (const double beta1 : {0.3, 0.9}) {
          expect_the_bits_of_the_cpu(3, 256, {3e-3, beta1, 0.99, 1e-6, 0.1, decoupled, amsgrad, maximize}, 0);
        }
      }
    }
  }
}

TEST(Adam, WhoWantsNoParametersGetsNone) {
  World world(3, 62);
  AdamWork work = world.work(kernels::scalars_of(kAdamW, 1), 3);
  work.parameters[0] = nullptr;
  run(work);
  EXPECT_TRUE(same_bits(world.parameters[0], fresh(world.packed).parameters));
  EXPECT_FALSE(same_bits(world.parameters[1], world.parameters[0]));
  EXPECT_TRUE(same_bits(world.parameters[1], world.parameters[2]));
}

TEST(Adam, ParametersMayReplaceTheGradientsOfOthers) {
  World apart(3, 62), together(3, 62);
  for (World* const world : {&apart, &together}) {
    AdamWork work = world->work(kernels::scalars_of(kAdamW, 1), 3);
    for (int r = 0; r < 2 && world == &together; ++r) work.parameters[r] = work.gradients[r];
    run(work);
  }
  EXPECT_TRUE(same_bits(together.parameters[2], apart.parameters[2]));
  for (int r = 0; r < 2; ++r) {
    EXPECT_TRUE(same_bits(Floats(together.gradients[r].begin(), together.gradients[r].begin() + 62),
                          Floats(apart.parameters[r].begin(), apart.parameters[r].begin() + 62)));
  }
}

TEST(Adam, AnAbortedGroupStepsNothing) {
  World world(2, 64);
  const Floats before = world.parameters[0];
  world.abort = 1;
  world.step(kernels::scalars_of(kAdamW, 1), 2);
  EXPECT_TRUE(same_bits(world.parameters[0], before));
  EXPECT_TRUE(same_bits(world.trained.state[0], fresh(64).state[0]));
  world.abort = 0;  // the next launch looks again
  world.step(kernels::scalars_of(kAdamW, 1), 2);
  EXPECT_FALSE(same_bits(world.parameters[0], before));
}

struct LookingPrimitives : AdamPrimitives {
  inline static const uint32_t* word = nullptr;
  inline static int looks = 0;
  static uint32_t load_acquire(const uint32_t* from) {
    looks += from == word;
    return *from;
  }
};

TEST(Adam, OneBlockReadsTheAbortWordForAll) {
  World world(2, 64);
  LookingPrimitives::word = &world.abort;
  const AdamWork work = world.work(kernels::scalars_of(kAdamW, 1), 2);
  for (int launch = 1; launch <= 2; ++launch) {
    testing::run_in_turn([&] { run_adam<LookingPrimitives, 2>(work); });
    EXPECT_EQ(LookingPrimitives::looks, launch);
    EXPECT_EQ(world.epoch.look, kNotLooked);
    EXPECT_EQ(world.epoch.finished_blocks, 0u);
    EXPECT_EQ(world.epoch.launches, 0u) << "plans count theirs";
  }
}

}  // namespace
}  // namespace ringdp::gpu
