// One thread that completes Futures: their callbacks may take the GIL, so they never run under a lock or on a driver.
//
// A callback may wait for the Futures of collectives that it starts itself (PowerSGD's hook does): those are completed by
// a thread of their own, one more for each level.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/deadline.h"

namespace ringdp::backend {

class Completion {
 public:
  Completion() : thread_([this] { loop(); }) {}
  ~Completion();  // runs what is queued, then joins

  void post(std::function<void()> task);  // any thread; does not block
  // When the process ends: waits until all that was posted has run, but not beyond the deadline. What comes later is not
  // run, nor let go: it may hold objects of a Python that is no more.
  void end(Deadline deadline);

  // This one; for a caller that is a task, the one that completes what it starts.
  Completion& for_caller();

  // Whether a task may run in the calling thread without overtaking one that was posted: none is left, or this is the
  // completion thread itself, which must not wait for itself.
  bool may_run_here();

 private:
  void loop();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool running_ = false;  // a task, right now
  bool stop_ = false, ended_ = false;
  std::unique_ptr<Completion> inner_;  // made by thread_
  std::thread thread_;
};

}  // namespace ringdp::backend
