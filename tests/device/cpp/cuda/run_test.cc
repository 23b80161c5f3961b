// Every device plan by both executors, ranks as threads: the bits are those of the serial fold.
#include <gtest/gtest.h>

#include <chrono>

#include "device/cpp/cuda/ranks.h"
#include "device/runtime/launch.h"

namespace ringdp::gpu::testing {

namespace {

std::vector<std::string> nothing(int world) { return std::vector<std::string>(world); }

bool waits_inside_kernels(plan::DeviceAlgorithm algorithm) { return algorithm == plan::DeviceAlgorithm::kPush; }

class EveryRun : public ::testing::TestWithParam<int> {};

TEST_P(EveryRun, EveryPlanGivesTheBitsOfTheSerialFold) {
  for (const int executor : {RD_GPU_SPIN, RD_GPU_STREAM}) {
    for (const plan::testing::DeviceKind& kind : plan::testing::device_kinds()) {
      if (executor == RD_GPU_STREAM && waits_inside_kernels(kind.algorithm)) continue;
      RankCase one;
      one.world = GetParam();
      one.algorithm = kind.algorithm;
      one.what = kind.what;
      one.executor = executor;
      EXPECT_EQ(run_threads(one), nothing(one.world)) << text_of(kind) << " executor " << executor;
    }
  }
}

// So many that they take the longer argument.
TEST_P(EveryRun, ManySteps) {
  for (const int executor : {RD_GPU_SPIN, RD_GPU_STREAM}) {
    RankCase one;
    one.world = GetParam();
    one.algorithm = plan::DeviceAlgorithm::kRankRing;
    one.executor = executor;
    one.segment_bytes = kPackBytes;
    one.packs = 100;
    const auto said = run_threads(one, [&](GpuRank& rank, int) {
      EXPECT_TRUE(one.world == 1 || rank.work().steps > kFewSteps);
      return rank.run();
    });
    EXPECT_EQ(said, nothing(one.world)) << "executor " << executor;
  }
}

TEST_P(EveryRun, RanksThatShareADevice) {
  for (const int executor : {RD_GPU_SPIN, RD_GPU_STREAM}) {
    RankCase one;
    one.world = GetParam();
    one.executor = executor;
    one.one_device = true;
    EXPECT_EQ(run_threads(one), nothing(one.world)) << "executor " << executor;
  }
}

TEST_P(EveryRun, EveryTypeThatHasAKernel) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF64, DType::kI32, DType::kI64}) {
    RankCase one;
    one.world = GetParam();
    one.dtype = dtype;
    one.sharing = RD_GPU_SHARE_FD;
    EXPECT_EQ(run_threads(one), nothing(one.world)) << name_of(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryRun, ::testing::Values(1, 2, 4));

TEST(Run, KernelsOnOneDeviceRunSideBySideOnlyIfTheyFit) {
  RankCase one;
  one.one_device = true;
  one.blocks = 4;  // all that the device holds
  one.launches = 1;
  one.deadline_ns = 300'000'000;
  const auto said = run_threads(one);
  EXPECT_TRUE(said[0].find("gave up") != std::string::npos || said[1].find("gave up") != std::string::npos);
}

}  // namespace

// Kernels that wait end at their deadline, or at once when they are told to, and the device goes on.

namespace {

RankCase of_three() {
  RankCase one;
  one.world = 3;
  one.deadline_ns = 1'000'000'000;  // the others are late where cores are few
  return one;
}

// What a rank that was not left out finds in its record.
std::string whom_it_waited_for(GpuRank& rank, int number, int left_out) {
  if (number == left_out) return "";
  rank.enqueue(rank.inputs_of_launch(0)[number], 0);
  rank.stream().synchronize();
  const Expired& record = rank.expired();
  return std::to_string(record.set) + ": " + std::to_string(record.rank) + " for " + std::to_string(record.peer) +
         ", epoch " + std::to_string(record.epoch);
}

TEST(SpinExecutor, ARankThatIsLeftOutIsNamedAtTheDeadline) {
  const auto said = run_threads(of_three(), [](GpuRank& rank, int r) { return whom_it_waited_for(rank, r, 1); });
  EXPECT_EQ(said, (std::vector<std::string>{"2: 0 for 1, epoch 1", "", "2: 2 for 1, epoch 1"}));
}

TEST(SpinExecutor, AnAbortEndsWaitsWithoutARecord) {
  RankCase one = of_three();
  one.deadline_ns = 60'000'000'000;
  const auto said = run_threads(one, [](GpuRank& rank, int r) -> std::string {
    if (r == 1) return "";
    rank.enqueue(rank.inputs_of_launch(0)[r], 0);
    rank.abort();
    rank.stream().synchronize();
    return std::to_string(rank.expired().set);
  });
  EXPECT_EQ(said, (std::vector<std::string>{"0", "", "0"}));
}

TEST(SpinExecutor, TheDeviceGoesOnAfterAFailure) {
  run_threads(of_three(), [](GpuRank& rank, int r) { return whom_it_waited_for(rank, r, 0); });
  EXPECT_EQ(run_threads(RankCase{}), std::vector<std::string>(2));
}

// A graph: the epochs lie in device memory, so every replay is a launch of its own.
TEST(SpinExecutor, AGraphIsReplayed) {
  RankCase one;
  const auto said = run_threads(one, [](GpuRank& rank, int r) -> std::string {
    const Inputs inputs = rank.inputs_of_launch(0);
    void* const stream = rank.stream().handle();
    control<void(void*)>("stand_in_begin_capture")(stream);
    rank.enqueue(inputs[r], 0);
    void* const graph = control<void*(void*)>("stand_in_end_capture")(stream);
    std::vector<char> first;
    for (int replay = 0; replay < 3; ++replay) {
      control<void(void*, void*)>("stand_in_replay")(graph, stream);
      rank.stream().synchronize();
      if (replay == 0) first = rank.output();
      if (rank.output() != first || rank.expired().set != 0) return "replay " + std::to_string(replay) + " is wrong";
    }
    control<void(void*)>("stand_in_end_graph")(graph);
    return first == rank.right(inputs) ? "" : "not the sum";
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
}

}  // namespace

// Streams that wait for a rank which is left out: the host sees whom, releases them, and the device goes on.

namespace {

TEST(StreamExecutor, WhoIsWaitedForIsSeenAndReleased) {
  RankCase one;
  one.world = 3;
  one.executor = RD_GPU_STREAM;
  const auto said = run_threads(one, [](GpuRank& rank, int r) -> std::string {
    if (r == 1) return "";
    rank.enqueue(rank.inputs_of_launch(0)[r], 0);
    std::optional<Expired> waited;
    for (int look = 0; look < 20'000; ++look) {  // the others' flags come by and by
      waited = waited_for(rank.launched(), rank.stream_flags());
      if (!waited || waited->peer == 1) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    release_waits(rank.stream_flags());
    rank.stream().synchronize();
    return waited ? std::to_string(waited->rank) + " for " + std::to_string(waited->peer) : "nobody";
  });
  EXPECT_EQ(said, (std::vector<std::string>{"0 for 1", "", "2 for 1"}));
  RankCase next;
  next.executor = RD_GPU_STREAM;
  EXPECT_EQ(run_threads(next), std::vector<std::string>(2));
}

struct Orderings {
  int64_t barriers = count("CU_STREAM_MEM_OP_BARRIER"), flushes = count("CU_STREAM_WAIT_VALUE_FLUSH");

 private:
  static int64_t count(const char* what) { return control<int64_t(const char*)>("stand_in_calls")(what); }
};

// A row of posts and awaits has a barrier, and every wait a flush.
TEST(StreamExecutor, OnlyBetweenDevicesWritesAreOrdered) {
  RankCase one;
  one.executor = RD_GPU_STREAM;
  one.one_device = true;
  const Orderings before;
  EXPECT_EQ(run_threads(one), nothing(one.world));
  const Orderings on_one;
  EXPECT_EQ(on_one.barriers, before.barriers);
  EXPECT_EQ(on_one.flushes, before.flushes);
  one.one_device = false;
  EXPECT_EQ(run_threads(one), nothing(one.world));
  const Orderings on_two;
  EXPECT_GE(on_two.barriers - on_one.barriers, one.world * one.launches);
  EXPECT_GE(on_two.flushes - on_one.flushes, one.world * one.launches);
}

TEST(StreamExecutor, WhatDriverAndDeviceLackIsNotAskedOfThem) {
  constexpr char kLacks[] = "STAND_IN_LACKS";
  if (const auto birth = birth_of_this_process()) {
    ProcessExchange exchange(*birth);
    StreamFlags flags(birth->flags);
    GpuRank rank(birth->one, birth->rank, exchange, flags);
    EXPECT_EQ(rank.run(), "");
    const Orderings used;
    EXPECT_EQ(used.barriers, 0);
    EXPECT_EQ(used.flushes, 0);
    return;
  }
  RankCase one;
  one.executor = RD_GPU_STREAM;
  setenv(kLacks, "flush,barriers", 1);
  Processes both(one, "StreamExecutor.WhatDriverAndDeviceLackIsNotAskedOfThem");
  unsetenv(kLacks);
  EXPECT_EQ(both.statuses(), std::vector<int>(2));
}

TEST(StreamExecutor, ACaptureIsRefused) {
  RankCase one;
  one.world = 1;
  one.executor = RD_GPU_STREAM;
  run_threads(one, [](GpuRank& rank, int) -> std::string {
    void* const stream = rank.stream().handle();
    control<void(void*)>("stand_in_begin_capture")(stream);
    const int result = gpu().run(&rank.work(), sizeof(Work), static_cast<int>(DType::kF32), 0, RD_GPU_STREAM, stream);
    EXPECT_NE(refused(result).find("stream_epoch is 0"), std::string::npos) << gpu().error();
    EXPECT_THROW(rank.enqueue(rank.inputs_of_launch(0)[0], 0), std::runtime_error);
    EXPECT_NE(std::string(gpu().error()).find("STREAM cannot be captured"), std::string::npos) << gpu().error();
    control<void(void*)>("stand_in_end_graph")(control<void*(void*)>("stand_in_end_capture")(stream));
    return "";
  });
}

}  // namespace

}  // namespace ringdp::gpu::testing
