// Ranks as threads that share memory of devices of this process (host_functions.h).
#pragma once
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/cpp/runtime/host_functions.h"
#include "device/runtime/peer_memory.h"

namespace ringdp::gpu::testing {

constexpr int64_t kHeapBytes = 4 << 20, kWindowBytes = 1 << 20;

class Neighbours {
 public:
  explicit Neighbours(int world) : world_(world), table_(world) {
    reset_devices();
    for (int r = 0; r < world; ++r) {
      bases_.push_back(static_cast<std::byte*>(std::aligned_alloc(4096, kHeapBytes)));
      heaps_.push_back(std::make_shared<transport::Heap>(nullptr, bases_.back(), kHeapBytes));
    }
  }
  ~Neighbours() {
    for (std::byte* const base : bases_) std::free(base);
  }

  std::function<void(int rank, PeerInfo&)> forge = [](int, PeerInfo&) {
  };                                                     // what a rank says of itself, changed on its way
  std::function<void(int round)> on_round = [](int) {};  // between two rounds of all-gathers, from 1

  int64_t window_bytes = kWindowBytes;

  std::byte* heap_of(int rank) const { return bases_[static_cast<size_t>(rank)]; }

  std::vector<std::unique_ptr<PeerMemory>> bootstrap() {
    std::vector<std::unique_ptr<PeerMemory>> met(static_cast<size_t>(world_));
    together([&](int r) { met[static_cast<size_t>(r)] = PeerMemory::bootstrap(functions_, r, around(r)); });
    return met;
  }

  // Calls it on a thread of every rank.
  void together(const std::function<void(int rank)>& call) {
    std::vector<std::thread> threads;
    for (int r = 0; r < world_; ++r) threads.emplace_back([&call, r] { call(r); });
    for (std::thread& thread : threads) thread.join();
  }

  BootstrapContext around(int rank) {
    BootstrapContext around;
    around.rank = rank;
    around.world = world_;
    around.window_bytes = window_bytes;
    around.all_gather = [this, rank](const std::string& own) { return all_gather(rank, own); };
    around.pass_fds = [this](const std::vector<std::string>&, int own) {
      std::vector<UniqueFd> received;
      for (int r = 0; r < world_; ++r) received.emplace_back(own < 0 ? -1 : ::dup(own));
      return received;
    };
    around.heap = heaps_[static_cast<size_t>(rank)];
    around.heaps = bases_;
    around.heap_bytes = kHeapBytes;
    around.wait_for_device = [this, rank] { on_wait(rank); };
    return around;
  }
  std::function<void(int rank)> on_wait = [](int) {};

 private:
  std::vector<std::string> all_gather(int rank, std::string own) {
    if (own.size() == sizeof(PeerInfo)) {
      PeerInfo info;
      std::memcpy(&info, own.data(), sizeof info);
      forge(rank, info);
      own = to_bytes(info);
    }
    return table_.all_gather(rank, own, [this] { on_round(++rounds_); });
  }

  const int world_;
  const Functions functions_ = host_functions();
  RoundTable table_;
  int rounds_ = 0;
  std::vector<std::byte*> bases_;
  std::vector<std::shared_ptr<transport::Heap>> heaps_;
};

}  // namespace ringdp::gpu::testing
