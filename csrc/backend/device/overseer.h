// Looks after collectives that devices run: what waits there for too long, or for a rank that is gone, is ended.
//
// Two threads per process, made with the first such collective, never destroyed. The one that looks asks the device
// nothing but at a deadline and at a group's end: it reads memory of the host, so it disturbs no graph that is being
// captured. The other parts groups that were left from their peers' memory, for which the driver waits until the device
// has nothing to do, perhaps until the first one has ended something.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/device/native_lane.h"

namespace ringdp::backend {

class Overseer {
 public:
  static Overseer& instance();
  // Looks at the lane until it has nothing under way, nor a graph that may be replayed; again and again, any thread.
  void look_after(std::shared_ptr<NativeLane> lane);
  // The same for the last time: then parts it, and frees its memory once its peers have let go of it too.
  void see_off(std::shared_ptr<NativeLane> lane);

 private:
  using LanePtr = std::shared_ptr<NativeLane>;
  Overseer();
  void look();
  void part();
  void look_at_all(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;  // guards the rest
  std::condition_variable more_, parting_;
  std::vector<LanePtr> lanes_, leaving_, parted_;
};

}  // namespace ringdp::backend
