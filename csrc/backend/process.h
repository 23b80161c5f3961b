// What all groups of this process share: the threads (driver, watch and completion), the list of groups, and the end of
// the process.
//
// Threads are made at first use, again in a forked child, and never destroyed: joining them in a static destructor, or
// in a child that does not have them, would hang.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "comm/group.h"

namespace ringdp::backend {

// One thread that completes Futures: their callbacks may take the GIL, so they never run under a lock or on a driver.
//
// A callback may wait for the Futures of collectives that it starts itself (PowerSGD's hook does): those are completed
// by a thread of their own, one more for each level.
class Completion {
 public:
  Completion() : thread_([this] { loop(); }) {}
  ~Completion();  // runs what is queued, then joins

  void post(std::function<void()> task);  // any thread; does not block
  void drain(Deadline deadline);          // waits until all posted tasks have run, but not beyond the deadline
  // When the process ends: drains. Later tasks are neither run nor freed: they may hold Python objects after Python is
  // finalized.
  void end(Deadline deadline);

  // This one; for a caller that is itself a task, the one that completes the collectives it starts.
  Completion& for_caller();

  // Whether a task may run in the calling thread without overtaking one that was posted: none is left, or this is the
  // completion thread itself, which must not wait for itself.
  bool may_run_here();

 private:
  void loop();
  void drain(std::unique_lock<std::mutex>& lock, Deadline deadline);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool running_ = false;  // a task, right now
  bool stop_ = false, ended_ = false;
  std::unique_ptr<Completion> inner_;  // made by thread_
  std::thread thread_;
};

comm::Runtime& runtime();
Completion& completion();  // for what this thread starts
// Runs the task, and frees what it holds, on a thread for that alone. For threads that others wait for: a device's
// driver lets none create or destroy an event, allocate or free memory, while some thread copies to pageable memory.
void dispose(std::function<void()> task);
// Waits until what was handed over has been freed, but not beyond the deadline: it may wait for another thread's copy.
void wait_for_disposal(Deadline deadline);

// For leave_all(); does not keep the group alive. Any thread.
void remember(const std::shared_ptr<comm::Group>& group);
std::vector<std::shared_ptr<comm::Group>> remembered();  // those that still exist
// Every group that still exists says goodbye to its peers, with last_words().
void leave_groups();
// The same when the process ends; callbacks that are due run. From then on no other thread returns to Python from
// ringdp: it would be ended in the middle of C++, which aborts.
void leave_all();
// Does not return in a thread that must not return to Python any more.
void stay_if_the_process_ends();

// The exception with which this rank leaves its groups, for its peers' error messages: "ValueError: batch is empty". It
// is the one that this Python thread handles, or that has ended the script; "" without one, or without Python. Takes
// the GIL.
std::string last_words() noexcept;

}  // namespace ringdp::backend
