#include "stand_in/kernel.h"

#include <atomic>
#include <deque>
#include <mutex>

#include "device/cuda/cuda_primitives.h"
#include "stand_in/machine.h"
#include "stand_in/memory.h"

namespace stand_in {
namespace {

using ringdp::gpu::testing::HostBlock;
using ringdp::gpu::testing::HostThread;

class Device {
 public:
  explicit Device(int number) : number_(number) {}

  void run(int blocks, const std::function<void()>& body) {
    std::vector<std::thread> running;
    {
      const std::lock_guard first_come(placing_);
      for (int b = 0; b < blocks; ++b) {
        take_place();
        running.emplace_back([this, b, blocks, &body] {
          run_block(b, blocks, body);
          leave();
        });
      }
    }
    for (std::thread& block : running) block.join();
  }

 private:
  void run_thread(HostBlock& its_block, int thread, int block, int blocks, const std::function<void()>& body) {
    HostThread self;
    self.thread = thread;
    self.threads = kThreadsOfBlock;
    self.block = block;
    self.its_block = &its_block;
    self.hostility.keeps_stores = false;
    self.hostility.one_yield_in = 0;
    ringdp::gpu::testing::this_thread = &self;
    ringdp::gpu::blocks_of_grid = blocks;
    enter_kernel(number_);
    body();
    ringdp::gpu::testing::this_thread = nullptr;
  }
  void run_block(int block, int blocks, const std::function<void()>& body) {
    HostBlock here(kThreadsOfBlock);
    std::vector<std::thread> others;
    for (int t = 1; t < kThreadsOfBlock; ++t) {
      others.emplace_back([&, t] { run_thread(here, t, block, blocks, body); });
    }
    run_thread(here, 0, block, blocks, body);
    for (std::thread& thread : others) thread.join();
  }

  void take_place() {
    std::unique_lock lock(mutex_);
    left_.wait(lock, [this] { return resident_ < machine().multiprocessors * kBlocksOfMultiprocessor; });
    ++resident_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    --resident_;
    left_.notify_all();
  }

  const int number_;
  std::mutex placing_;
  std::mutex mutex_;  // guards resident_
  std::condition_variable left_;
  int resident_ = 0;
};

// Never destroyed, as streams are not.
Device& device_at(int number) {
  static auto* const all = new std::deque<Device>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  while (static_cast<int>(all->size()) <= number) all->emplace_back(static_cast<int>(all->size()));
  return all->at(static_cast<size_t>(number));
}

}  // namespace

namespace {
std::atomic<size_t> all_blocks{0}, all_arguments{0};
}

void launch(Stream& stream, int blocks, size_t argument_bytes, const std::function<void()>& body) {
  if (stream.device != current_device()) {
    throw Refusal(cudaErrorInvalidResourceHandle, "a launch on a stream of another device than the current one");
  }
  all_blocks += static_cast<size_t>(blocks);
  all_arguments += argument_bytes;
  stream.has_launched = true;
  stream.push([device = stream.device, blocks, body] { device_at(device).run(blocks, body); });
}

size_t launched_blocks() { return all_blocks; }
size_t launched_arguments() { return all_arguments; }

}  // namespace stand_in
