// Watches the collectives that devices run: ends waits that pass a deadline or are for a failed rank.
//
// Two threads per process, started with the first such collective, never destroyed. The polling thread reads only host
// memory, except at a deadline and at a group's end, so it does not disturb captures. The other one tears down groups
// that were destroyed: unmapping peers' memory blocks in the driver until the device is idle, which may need the first
// thread to end a wait.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "device/torch/device_queue.h"

namespace ringdp::backend {

class Watchdog {
 public:
  static Watchdog& instance();
  // Polls the queue until it has no call in flight and no captured call. May be called repeatedly, by any thread.
  void watch(std::shared_ptr<DeviceQueue> queue);
  // Polls the queue for the last time, then tears it down, and frees its memory once its peers have unmapped it.
  void teardown(std::shared_ptr<DeviceQueue> queue);

 private:
  using QueuePtr = std::shared_ptr<DeviceQueue>;
  Watchdog();
  void run();
  void tear_down();
  void poll_all(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;  // guards the rest
  std::condition_variable more_, teardown_;
  std::vector<QueuePtr> queues_, leaving_, ended_;
};

}  // namespace ringdp::backend
