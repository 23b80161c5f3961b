// Looks after collectives that devices run: what waits there for too long, or for a rank that is gone, is ended.
//
// Two threads per process, made with the first such collective, never destroyed. The one that looks asks the device
// nothing but at a deadline and at a group's end: it reads memory of the host, so it disturbs no graph that is being
// captured. The other tears down groups that were left: to unmap peers' memory the driver waits until the device
// has nothing to do, perhaps until the first one has ended something.
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
  // Looks at the queue until it has nothing under way, nor a graph that may be replayed; again and again, any thread.
  void look_after(std::shared_ptr<DeviceQueue> queue);
  // The same for the last time: then tears it down, and frees its memory once its peers have unmapped it too.
  void teardown(std::shared_ptr<DeviceQueue> queue);

 private:
  using QueuePtr = std::shared_ptr<DeviceQueue>;
  Watchdog();
  void look();
  void tear_down();
  void look_at_all(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;  // guards the rest
  std::condition_variable more_, teardown_;
  std::vector<QueuePtr> queues_, leaving_, ended_;
};

}  // namespace ringdp::backend
