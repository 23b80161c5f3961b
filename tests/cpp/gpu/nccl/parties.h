// Ranks as threads that meet around a fake NCCL, each with a device of this process.
#pragma once
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "gpu/nccl/fake_nccl.h"
#include "gpu/nccl/ranks.h"
#include "gpu/round_table.h"

namespace ringdp::gpu::testing {

constexpr int64_t kPartyWindow = 1 << 20, kHeapBytes = 1 << 20;

class Parties {
 public:
  explicit Parties(int world) : world_(world), table_(world) {
    reset_nccl();
    for (int r = 0; r < world; ++r) {
      bases_.push_back(static_cast<std::byte*>(std::aligned_alloc(4096, kHeapBytes)));
      heaps_.push_back(std::make_shared<transport::Heap>(nullptr, bases_.back(), kHeapBytes));
    }
  }
  ~Parties() {
    for (std::byte* const base : bases_) std::free(base);
  }

  plan::LinkWish wish;  // with hosts, these share memory within
  std::function<std::string(int rank)> why_not_on_host = [](int) { return ""; };

  std::vector<std::unique_ptr<NcclRanks>> meet() {
    std::vector<std::unique_ptr<NcclRanks>> met(static_cast<size_t>(world_));
    std::vector<std::thread> threads;
    for (int r = 0; r < world_; ++r) {
      threads.emplace_back([this, r, &mine = met[static_cast<size_t>(r)]] {
        mine = NcclRanks::meet(functions_, r, around(r));
      });
    }
    for (std::thread& thread : threads) thread.join();
    return met;
  }

 private:
  NcclSurroundings around(int rank) {
    NcclSurroundings around;
    around.rank = rank;
    around.world = world_;
    around.window_bytes = kPartyWindow;
    around.wish = wish;
    around.deadline = Deadline::after(std::chrono::seconds(20));
    around.tell_all = [this, rank](const std::string& own) { return table_.tell_all(rank, own); };
    around.with_device = [](const std::function<void()>& run) { run(); };
    around.still_there = [] {};
    around.on_host = [this, rank](HostTelling& telling) { return on_host(rank, telling); };
    around.why_not_on_host = why_not_on_host(rank);
    return around;
  }

  Surroundings on_host(int rank, HostTelling& telling) {
    Surroundings around;
    around.rank = rank - telling.first();
    around.world = telling.members();
    around.window_bytes = kPartyWindow;
    around.tell_all = [&telling](const std::string& own) { return telling.tell(own); };
    around.pass_fds = [members = telling.members()](const std::vector<std::string>&, int) {
      return std::vector<UniqueFd>(static_cast<size_t>(members));
    };
    around.heap = heaps_[static_cast<size_t>(rank)];
    around.heaps.assign(bases_.begin() + telling.first(), bases_.begin() + telling.first() + telling.members());
    around.heap_bytes = kHeapBytes;
    return around;
  }

  const int world_;
  const Functions functions_ = functions_with_nccl();
  RoundTable table_;
  std::vector<std::byte*> bases_;
  std::vector<std::shared_ptr<transport::Heap>> heaps_;
};

}  // namespace ringdp::gpu::testing
