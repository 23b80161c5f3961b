// Where a thread runs, and a thread for calls that may never return.
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

// Makes calls that may never return, for a caller that waits with a deadline. One caller at a time.
class HelperThread {
 public:
  HelperThread();
  ~HelperThread();  // joins, unless a call has not returned: then the thread is detached

  HelperThread(const HelperThread&) = delete;
  HelperThread& operator=(const HelperThread&) = delete;

  // Starts the call, which must own all that it uses, because it may outlive the caller. False when an earlier call has
  // not returned.
  bool begin(std::function<void()> call);
  // True once the call has returned; rethrows its exception. False when the deadline passed first.
  bool wait(Deadline deadline);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ringdp
