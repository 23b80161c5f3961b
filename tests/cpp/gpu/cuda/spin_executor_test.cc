// Kernels that wait end at their deadline, or at once when they are told to, and the device goes on.
#include <gtest/gtest.h>

#include "gpu/cuda/thread_ranks.h"

namespace ringdp::gpu::testing {
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
}  // namespace ringdp::gpu::testing
