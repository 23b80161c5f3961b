// A mutex that its owner cannot wait for.
//
// Users' Python runs while a reducer is locked: communication hooks, steps inside the backward pass with their hooks,
// and signal handlers during a wait. What it asks the reducer would wait for itself.
#pragma once
#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <thread>

namespace ringdp::reducer {

class OwnMutex {
 public:
  // Throws in the thread that has locked it.
  void lock() {
    TORCH_CHECK(!is_mine(),
                "DistributedDataParallel: asked by a hook or a signal handler that runs inside its own backward pass, "
                "which would wait for itself: ask when backward() has returned");
    mutex_.lock();
    owner_ = std::this_thread::get_id();
  }
  bool try_lock() {
    if (is_mine() || !mutex_.try_lock()) return false;
    owner_ = std::this_thread::get_id();
    return true;
  }
  void unlock() {
    owner_ = std::thread::id();
    mutex_.unlock();
  }

 private:
  bool is_mine() const { return owner_.load() == std::this_thread::get_id(); }

  std::mutex mutex_;
  std::atomic<std::thread::id> owner_;
};

}  // namespace ringdp::reducer
