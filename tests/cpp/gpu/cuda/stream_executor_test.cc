// Streams that wait for a rank which is left out: the host sees whom, releases them, and the device goes on.
#include <gtest/gtest.h>

#include <chrono>

#include "gpu/cuda/thread_ranks.h"
#include "gpu/stream_flags.h"

namespace ringdp::gpu::testing {
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
      waited = waited_for(rank.work(), rank.stream_flags());
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
