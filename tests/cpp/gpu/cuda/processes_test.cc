// Plans run by ranks that are processes, over memory that they share both ways.
#include <gtest/gtest.h>

#include "gpu/cuda/process_ranks.h"

namespace ringdp::gpu::testing {
namespace {

constexpr char kItself[] = "Processes.GiveTheBitsOfTheSerialFold";

TEST(Processes, GiveTheBitsOfTheSerialFold) {
  if (const auto birth = birth_of_this_process()) {
    ProcessExchange exchange(*birth);
    StreamFlags flags(birth->flags);
    GpuRank rank(birth->one, birth->rank, exchange, flags);
    EXPECT_EQ(rank.run(), "");
    return;
  }
  using plan::DeviceAlgorithm;
  for (const int world : {1, 2, 4}) {
    for (const auto& [algorithm, executor, sharing] :
         {std::tuple(DeviceAlgorithm::kDirect, RD_GPU_STREAM, RD_GPU_SHARE_AUTO),
          std::tuple(DeviceAlgorithm::kRankRing, RD_GPU_STREAM, RD_GPU_SHARE_FD),
          std::tuple(DeviceAlgorithm::kOneShot, RD_GPU_SPIN, RD_GPU_SHARE_FD),
          std::tuple(DeviceAlgorithm::kPush, RD_GPU_SPIN, RD_GPU_SHARE_AUTO)}) {
      RankCase one;
      one.world = world;
      one.algorithm = algorithm;
      one.executor = executor;
      one.sharing = sharing;
      one.one_device = executor == RD_GPU_STREAM;
      EXPECT_EQ(Processes(one, kItself).statuses(), std::vector<int>(world)) << world << " " << name_of(algorithm);
    }
  }
}

}  // namespace
}  // namespace ringdp::gpu::testing
