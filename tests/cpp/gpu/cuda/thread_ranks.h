// Ranks that are threads of this process.
#pragma once
#include <barrier>
#include <functional>
#include <memory>
#include <thread>

#include "gpu/cuda/gpu_rank.h"

namespace ringdp::gpu::testing {

class ThreadExchange final : public Exchange {
 public:
  ThreadExchange(int rank, std::vector<Share>& shares, std::barrier<>& barrier)
      : rank_(rank), shares_(shares), barrier_(barrier) {}
  std::vector<Share> all(const Share& mine) override {
    shares_[rank_] = mine;
    meet();
    std::vector<Share> all = shares_;
    for (Share& share : all) share.fd = share.fd < 0 ? -1 : dup(share.fd);
    meet();
    if (mine.fd >= 0) close(mine.fd);
    return all;
  }
  void meet() override { barrier_.arrive_and_wait(); }

 private:
  const int rank_;
  std::vector<Share>& shares_;
  std::barrier<>& barrier_;
};

// What `body` says of each rank, which is there until all have said it.
using RankBody = std::function<std::string(GpuRank&, int rank)>;
inline std::vector<std::string> run_threads(const RankCase& one, const RankBody& body) {
  std::vector<std::string> said(one.world);
  std::vector<Share> shares(one.world);
  std::barrier barrier(one.world);
  StreamFlags flags;
  std::vector<std::thread> threads;
  for (int r = 0; r < one.world; ++r) {
    threads.emplace_back([&, r] {
      ThreadExchange exchange(r, shares, barrier);
      GpuRank rank(one, r, exchange, flags);
      said[r] = body(rank, r);
      exchange.meet();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return said;
}

inline std::vector<std::string> run_threads(const RankCase& one) {
  return run_threads(one, [](GpuRank& rank, int) { return rank.run(); });
}

}  // namespace ringdp::gpu::testing
