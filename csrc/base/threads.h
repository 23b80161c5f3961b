// Where a thread runs, and a thread for calls that may never come back.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "base/deadline.h"

namespace ringdp {

std::vector<int> usable_cores();  // of this thread, ascending; empty when the system does not say
int current_core();               // -1 when the system does not say

// Moves this thread to one of `cores` at once; afterwards it may run wherever it might before. False when the system
// refuses, or when this thread may run on none of `cores`.
bool move_to(const std::vector<int>& cores);

// A thread that makes calls which may never come back, for a caller that waits for none of them beyond a deadline. One
// caller at a time.
class HelperThread {
 public:
  HelperThread();
  ~HelperThread();  // joins, unless a call has not come back: then the thread is left behind

  HelperThread(const HelperThread&) = delete;
  HelperThread& operator=(const HelperThread&) = delete;

  // Has the thread make the call, which owns all that it uses: it may outlive the caller. False when an earlier
  // call has not come back.
  bool begin(std::function<void()> call);
  // True once it has come back; what it has thrown is thrown here. False when the deadline has passed first.
  bool wait(Deadline deadline);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ringdp
