// What plans become in kernels: steps and flags, the bytes of the textbook, and what cannot be lowered.
#include "device/plan/lower.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "device/cpp/plan/cases.h"
#include "device/plan/check.h"
#include "device/plan/race.h"
#include "plan/builder.h"
#include "plan/harness.h"

namespace ringdp::plan::testing {
namespace {

constexpr int64_t kPacks = 840;  // divides by all numbers of ranks, and of receivers
constexpr DeviceKind kOneShotSum = {DeviceAlgorithm::kOneShot, Collective::kAllReduce};
constexpr DeviceKind kPushedSum = {DeviceAlgorithm::kPush, Collective::kAllReduce};

std::vector<DevicePlan> plans_of(const DeviceKind& kind, int world, int64_t packs) {
  return device_plans(kind.algorithm, device_problem(kind, world, packs));
}

std::vector<DevicePlan> plans_of(const DeviceKind& kind, int world, int64_t packs, int root) {
  Problem problem = device_problem(kind, world, packs);
  problem.root = root;
  return device_plans(kind.algorithm, problem);
}

std::vector<DevicePlan> direct_plans(Collective what, int world, int64_t packs) {
  return plans_of({DeviceAlgorithm::kDirect, what}, world, packs);
}

// ---- sums

// 2(N-1)/N S over links each way: what is read from others and what is written to them, half each.
TEST(DeviceDirect, AllReduceMovesTheTextbookBytes) {
  for (int world = 2; world <= 8; ++world) {
    const int64_t slice = 10 * kPackBytes;
    for (const DevicePlan& plan : direct_plans(Collective::kAllReduce, world, 10 * world)) {
      const DeviceTraffic sums = traffic_of(plan);
      EXPECT_EQ(sums.read_remote, (world - 1) * slice);
      EXPECT_EQ(sums.written_remote, (world - 1) * slice);
      EXPECT_EQ(sums.read_local + sums.written_local, 2 * slice);
      EXPECT_EQ(plan.steps.size(), 4u * (world - 1) + 1);
      EXPECT_EQ(plan.stage_bytes, 0);
    }
  }
}

TEST(DeviceDirect, ReduceScatterReadsEveryPartOnce) {
  for (int world = 2; world <= 8; ++world) {
    for (const DevicePlan& plan : direct_plans(Collective::kReduceScatter, world, 10)) {
      EXPECT_EQ(traffic_of(plan).read_remote, (world - 1) * 10 * kPackBytes);
      EXPECT_EQ(traffic_of(plan).written_remote, 0);
      EXPECT_EQ(plan.steps.size(), 4u * (world - 1) + 1);
    }
  }
}

// Slices of whole packs, each of which is one rank's.
TEST(DeviceDirect, SlicesCoverTheTensor) {
  for (const int64_t packs : {1, 2, 7, 64}) {
    int64_t next = 0;
    for (const DevicePlan& plan : direct_plans(Collective::kAllReduce, 5, packs)) {
      for (const DeviceStep& step : plan.steps) {
        if (step.verb != DeviceVerb::kSum) continue;
        EXPECT_EQ(step.from.offset, next);
        next += step.count;
      }
    }
    EXPECT_EQ(next, packs * 4);
  }
}

TEST(DeviceDirect, IsPrinted) {
  EXPECT_EQ(text_of(direct_plans(Collective::kAllReduce, 2, 2)[1]),
            "all_reduce direct float32 SUM, rank 1 of 2: 5 steps\n"
            "0 post entry 1 to 0\n"
            "1 await entry 1 of 0\n"
            "2 sum 4 elements: input of all at 4 -> output of all at 4, finished\n"
            "3 post exit 1 to 0\n"
            "4 await exit 1 of 0");
}

TEST(DeviceOneShot, ReadsEverythingFromAllRanksOnce) {
  for (int world = 2; world <= 8; ++world) {
    for (const DevicePlan& plan : plans_of(kOneShotSum, world, 10)) {
      EXPECT_EQ(traffic_of(plan).read_remote, (world - 1) * 10 * kPackBytes);
      EXPECT_EQ(traffic_of(plan).written_remote, 0);
      EXPECT_EQ(plan.stage_bytes, 10 * kPackBytes);
      EXPECT_EQ(plan.steps.size(), 4u * (world - 1) + 2);
    }
  }
}

// Tensors that others cannot reach are served too.
TEST(DeviceOneShot, TouchesNoOtherRanksTensors) {
  for (const DeviceKind& kind : {kOneShotSum, kPushedSum}) {
    for (const DevicePlan& plan : plans_of(kind, 3, 10)) {
      for (const DeviceStep& step : plan.steps) {
        for (const DeviceRef& ref : {step.from, step.to}) {
          const bool is_tensor = ref.space == DeviceSpace::kInput || ref.space == DeviceSpace::kOutput;
          EXPECT_TRUE(!is_tensor || ref.rank == kOwnRank) << text_of(step);
        }
      }
    }
  }
}

// Twice the bytes, for their flags; and no step that waits for another rank.
TEST(DevicePush, SendsEverythingTwiceAsLongToAllRanks) {
  for (int world = 2; world <= 8; ++world) {
    for (const DevicePlan& plan : plans_of(kPushedSum, world, 10)) {
      EXPECT_EQ(traffic_of(plan).written_remote, 2 * (world - 1) * 10 * kPackBytes);
      EXPECT_EQ(traffic_of(plan).read_remote, 0);
      EXPECT_EQ(plan.pushed_bytes, 2 * 10 * kPackBytes);
      EXPECT_EQ(plan.steps.size(), 2u);
    }
  }
}

TEST(DeviceOneShot, IsPrinted) {
  EXPECT_EQ(text_of(plans_of(kOneShotSum, 2, 1)[0]),
            "all_reduce one_shot float32 SUM, rank 0 of 2: 6 steps\n"
            "0 copy 4 elements: input -> stage\n"
            "1 post entry 1 to 1\n"
            "2 await entry 1 of 1\n"
            "3 sum 4 elements: stage of all -> output, finished\n"
            "4 post exit 1 to 1\n"
            "5 await exit 1 of 1");
  EXPECT_EQ(text_of(plans_of(kPushedSum, 2, 1)[0]),
            "all_reduce push float32 SUM, rank 0 of 2: 2 steps\n"
            "0 push 4 elements: input -> pushed of all\n"
            "1 sum pushed 4 elements: input -> output, finished");
}

// ---- moves

TEST(DeviceMoves, EveryPartIsWrittenOnceToAllOthers) {
  for (int world = 2; world <= 8; ++world) {
    for (const Collective what : {Collective::kAllGather, Collective::kAllToAll}) {
      for (const DevicePlan& plan : direct_plans(what, world, kPacks)) {
        const int64_t part = kPacks * kPackBytes;
        EXPECT_EQ(traffic_of(plan).written_remote, (world - 1) * part);
        EXPECT_EQ(traffic_of(plan).written_local, part);
        EXPECT_EQ(traffic_of(plan).read_remote, 0);
        EXPECT_EQ(plan.steps.size(), 4u * (world - 1) + (what == Collective::kAllGather ? 1 : world));
      }
    }
  }
}

// The root sends every element once, its receivers hand their slices on.
TEST(DeviceMoves, BroadcastSharesTheWorkOfTheRoot) {
  for (int world = 2; world <= 8; ++world) {
    const int64_t tensor = kPacks * kPackBytes;
    for (const DevicePlan& plan : direct_plans(Collective::kBroadcast, world, kPacks)) {
      const bool is_root = plan.rank == world / 2;
      EXPECT_EQ(traffic_of(plan).written_remote, is_root ? tensor : (world - 2) * (tensor / (world - 1)));
      EXPECT_EQ(traffic_of(plan).written_local, 0);
      EXPECT_EQ(plan.steps.size(), is_root ? 3u * (world - 1) : 2 + 3u * (world - 2));
    }
  }
}

TEST(DeviceMoves, ABarrierIsFlagsOnly) {
  EXPECT_EQ(text_of(direct_plans(Collective::kBarrier, 3, 0)[0]),
            "barrier direct float32 SUM, rank 0 of 3: 4 steps\n0 post entry 1 to 1\n1 post entry 1 to 2\n"
            "2 await entry 1 of 1\n3 await entry 1 of 2");
}

TEST(DeviceMoves, AMessageIsABroadcastOfTwo) {
  const auto plans = plans_of({DeviceAlgorithm::kDirect, Collective::kBroadcast}, 2, 3, 0);
  EXPECT_EQ(text_of(plans[0]),
            "broadcast direct float32 SUM, rank 0 of 2: 3 steps\n0 await entry 1 of 1\n"
            "1 copy 12 elements: input -> output of 1\n2 post exit 1 to 1");
  EXPECT_EQ(text_of(plans[1]),
            "broadcast direct float32 SUM, rank 1 of 2: 2 steps\n0 post entry 1 to 0\n1 await exit 1 of 0");
}

// ---- roots

constexpr DeviceKind kRooted[] = {{DeviceAlgorithm::kDirect, Collective::kReduce},
                                  {DeviceAlgorithm::kOneShot, Collective::kReduce},
                                  {DeviceAlgorithm::kDirect, Collective::kGather},
                                  {DeviceAlgorithm::kDirect, Collective::kScatter},
                                  {DeviceAlgorithm::kDirect, Collective::kBroadcast}};

// Also where the root changes from one to the next: no rank counts on which one was it before.
TEST(DeviceRooted, AnyRootAfterAnyOther) {
  for (int world = 2; world <= 8; ++world) {
    for (const DeviceKind& kind : kRooted) {
      for (int root = 0; root < world; ++root) {
        const std::vector<DevicePlan> first = plans_of(kind, world, 9, root);
        check_together(first);
        const DeviceKind& other = kRooted[(root + world) % std::size(kRooted)];
        const std::vector<DevicePlan> second = plans_of(other, world, 9, (root + 1) % world);
        for (const bool in_place : {false, true}) {
          EXPECT_EQ(find_race({first, second, first}, {2, 2, 2}, in_place), "")
              << text_of(kind) << ", " << text_of(other);
        }
      }
    }
  }
}

TEST(DeviceRooted, OnlyTheRootMovesAndEveryPartOnce) {
  for (int world = 2; world <= 8; ++world) {
    for (const DeviceKind& kind : {kRooted[1], kRooted[2], kRooted[3]}) {
      for (const DevicePlan& plan : plans_of(kind, world, 10, 1)) {
        const DeviceTraffic sums = traffic_of(plan);
        const int64_t expected = plan.rank == 1 ? (world - 1) * 10 * kPackBytes : 0;
        EXPECT_EQ(sums.read_remote + sums.written_remote, expected) << text_of(kind);
        EXPECT_EQ(kind.what == Collective::kScatter ? sums.read_remote : sums.written_remote, 0) << text_of(kind);
      }
    }
  }
}

// What a root alone reads, (N-1) S, others halve and more: 2(N-1)/N S reach it.
TEST(DeviceRooted, OwnersShareAReduce) {
  for (int world = 2; world <= 8; ++world) {
    const int64_t tensor = 10 * world * kPackBytes;
    int64_t written_to_root = 0;
    for (const DevicePlan& plan : plans_of(kRooted[0], world, 10 * world, 1)) {
      EXPECT_EQ(traffic_of(plan).read_remote, (world - 1) * tensor / world);
      written_to_root += traffic_of(plan).written_remote;
      EXPECT_EQ(traffic_of(plan).written_local, plan.rank == 1 ? tensor / world : 0);
    }
    EXPECT_EQ(written_to_root, (world - 1) * tensor / world);
  }
}

TEST(DeviceRooted, ArePrinted) {
  EXPECT_EQ(text_of(plans_of(kRooted[2], 2, 1, 1)[1]),
            "gather direct float32 SUM, rank 1 of 2: 4 steps\n0 await entry 1 of 0\n"
            "1 copy 4 elements: input -> output at 4\n2 copy 4 elements: input of 0 -> output\n"
            "3 post exit 1 to 0");
  EXPECT_EQ(text_of(plans_of(kRooted[3], 2, 1, 1)[0]),
            "scatter direct float32 SUM, rank 0 of 2: 2 steps\n0 post entry 1 to 1\n1 await exit 1 of 1");
  EXPECT_EQ(text_of(plans_of(kRooted[1], 3, 1, 0)[0]),
            "reduce one_shot float32 SUM, rank 0 of 3: 5 steps\n0 await entry 1 of 1\n1 await entry 1 of 2\n"
            "2 sum 4 elements: input of all -> output, finished\n3 post exit 1 to 1\n4 post exit 1 to 2");
}

// ---- before they are lowered

// Every plan but the rotated ring, whose halves are summed in other orders, and those of one rank.
TEST(MemoryPlans, EqualTheSerialOracleInAnySchedule) {
  uint64_t seed = 0;
  for (const DeviceKind& kind : device_kinds()) {
    if (kind.algorithm == DeviceAlgorithm::kRotatedRing) continue;
    for (int world = 2; world <= kMaxDeviceRanks; ++world) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32}) {
        for (const int64_t packs : {0, 1, 3, 17}) {
          Case c;
          c.seed = ++seed;
          c.in_place = seed % 2 == 0;
          c.problem = device_problem(kind, world, packs, dtype);
          c.problem.op = is_floating(dtype) && seed % 3 == 0 ? ReduceOp::kAvg : ReduceOp::kSum;
          c.problem.root = static_cast<int>(seed % world);
          c.problem.segment_bytes = 32;
          c.problem.slot_bytes = 512;  // of the simulator
          std::vector<Plan> plans;
          for (Problem own = c.problem; own.rank < world; ++own.rank) {
            plans.push_back(make_memory_plan(kind.algorithm, own));
          }
          check_sequence({c, c}, {plans, plans});
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// ---- any plan

Problem problem_of(int rank, int world, DType dtype = DType::kF32) {
  Problem problem;
  problem.dtype = dtype;
  problem.rank = rank;
  problem.world = world;
  problem.count = 8 * kPackBytes / size_of(dtype);
  problem.on_device = problem.in_heaps = true;
  return problem;
}

using Writer = void (*)(Builder& builder, int channel, const Problem& problem);

DevicePlan lowered(const Problem& problem, Writer write) {
  return lower(problem, [write](const Problem& own) {
    Builder builder("x", own);
    write(builder, builder.add_channel("all"), own);
    return builder.finish();
  });
}

std::string steps_of(const DevicePlan& plan) {
  const std::string text = text_of(plan);
  return text.substr(std::min(text.find('\n') + 1, text.size()));
}

TEST(Lower, FlagsGrowPerSlotAndPair) {
  const DevicePlan plan = lowered(problem_of(1, 4), [](Builder& builder, int channel, const Problem&) {
    builder.post(channel, 2, 0);
    builder.post(channel, 2, 0);
    builder.post(channel, 0, 1);
    builder.await(channel, 2, 1);
    builder.arrive(channel);
    builder.wait(channel);
  });
  EXPECT_EQ(steps_of(plan),
            "0 post entry 1 to 2\n1 post entry 2 to 2\n2 post exit 1 to 0\n3 await exit 1 of 2\n"
            "4 post entry 3 to 2\n5 post entry 1 to 3\n6 post entry 1 to 0\n"
            "7 await entry 1 of 2\n8 await entry 1 of 3\n9 await entry 1 of 0");
}

// Rank 0 sends what it has and a sum to rank 1, which uses the sum only: that waits for both, and has the only flag.
void send_two(Builder& builder, int channel, const Problem& problem) {
  const Extent first = {0, problem.unit()}, second = {problem.unit(), 2 * problem.unit()};
  const int64_t at = builder.reserve_scratch(64);
  const Ref prefix = Builder::scratch(at, Form::kRaw, problem.unit());
  const Ref sum = Builder::scratch(builder.reserve_scratch(64), Form::kWide, problem.unit());
  if (problem.rank == 0) {
    const int send = builder.add_send_channel(1);
    builder.send(send, 1, 0, builder.input(0, first));
    const After ready = builder.fold(channel, {prefix, builder.input(0, second)}, {sum}, false);
    builder.send(send, 1, 1, sum, {ready});
  } else {
    const int recv = builder.add_recv_channel(0);
    builder.recv(recv, 0, 0, builder.output(0, first));
    const After came = builder.recv(recv, 0, 1, sum);
    builder.copy(channel, builder.input(0, first), builder.output(0, second));
    builder.fold(channel, {sum, builder.input(0, second)}, {builder.output(0, second)}, true, {came});
  }
}

TEST(Lower, AMessageIsAStoreAndAFlagWhereItIsUsed) {
  EXPECT_EQ(steps_of(lowered(problem_of(0, 2, DType::kBF16), send_two)),
            "0 copy 8 elements: input -> output of 1\n"
            "1 add 8 elements: stage + input at 8 -> stage of 1, wide, at 16\n"
            "2 post up 1 to 1");
  EXPECT_EQ(steps_of(lowered(problem_of(1, 2, DType::kBF16), send_two)),
            "0 copy 8 elements: input -> output at 8\n"
            "1 await up 1 of 0\n"
            "2 add 8 elements: stage, wide, at 16 + input at 8 -> output at 8, finished");
}

// Ranks cut a tensor by what they need, and have to do it in the same way.
TEST(Lower, AllRanksNeedTheSameStage) {
  for (const DeviceAlgorithm algorithm : {DeviceAlgorithm::kRankRing, DeviceAlgorithm::kRotatedRing}) {
    for (const Collective what : {Collective::kAllReduce, Collective::kReduceScatter}) {
      for (int world = 2; world <= 8; ++world) {
        const std::vector<DevicePlan> plans =
            device_plans(algorithm, device_problem({algorithm, what}, world, 17, DType::kBF16));
        for (const DevicePlan& plan : plans) EXPECT_EQ(plan.stage_bytes, plans[0].stage_bytes) << name_of(what);
      }
    }
  }
}

TEST(Lower, LeavesOutDataStepsOfNothing) {
  const DevicePlan plan = lowered(problem_of(0, 1), [](Builder& builder, int channel, const Problem&) {
    builder.copy(channel, builder.input(0, {0, 0}), builder.slot(0, 0, 64, 0));
    builder.fold(channel, {builder.input(0, {0, 0})}, {builder.output(0, {0, 0})}, true);
  });
  EXPECT_TRUE(plan.steps.empty());
  EXPECT_EQ(plan.stage_bytes, 0);
}

std::string refusal(Writer write, ErrorKind kind) {
  try {
    lowered(problem_of(1, 2), write);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "";
}

TEST(Lower, RefusesMoreStepsThanAKernelTakes) {
  const std::string message = refusal(
      [](Builder& builder, int channel, const Problem& problem) {
        const Extent pack = {0, problem.unit()};
        for (int i = 0; i <= kMaxDeviceSteps; ++i)
          builder.copy(channel, builder.input(0, pack), builder.output(0, pack));
      },
      ErrorKind::kInvalidArgument);
  EXPECT_NE(message.find("x needs 193 steps on rank 1"), std::string::npos) << message;
}

TEST(Lower, RefusesWhatKernelsCannotDo) {
  const Writer waits_for_room = [](Builder& builder, int channel, const Problem& problem) {
    const Ref part = builder.output(0, {0, problem.unit()});
    const After done = builder.copy(channel, builder.input(0, {0, problem.unit()}), part);
    if (problem.rank == 1) builder.recv(builder.add_recv_channel(0), 0, 0, part, {done});
    if (problem.rank == 0) builder.send(builder.add_send_channel(1), 1, 0, part, {done});
  };
  EXPECT_NE(refusal(waits_for_room, ErrorKind::kInternal).find("messages that wait for room"), std::string::npos);
  const Writer encodes = [](Builder& builder, int channel, const Problem& problem) {
    builder.encode(channel, builder.input(0, {0, problem.unit()}), Builder::scratch(0, Form::kEncoded, problem.unit()));
  };
  EXPECT_NE(refusal(encodes, ErrorKind::kInternal).find("wire types"), std::string::npos);
  const Writer at_other_places = [](Builder& builder, int channel, const Problem& problem) {
    const Extent pack = {0, problem.unit()}, next = {problem.unit(), 2 * problem.unit()};
    builder.fold(channel, {builder.peer_input(0, pack), builder.input(0, next)}, {builder.output(0, pack)}, true);
  };
  EXPECT_NE(refusal(at_other_places, ErrorKind::kInternal).find("different places"), std::string::npos);
}

}  // namespace
}  // namespace ringdp::plan::testing
