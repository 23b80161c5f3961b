// A thread that makes calls which may never come back, for a caller that waits for none of them beyond a deadline.
#pragma once
#include <functional>
#include <memory>

#include "base/deadline.h"

namespace ringdp {

// One caller at a time.
class HelperThread {
 public:
  HelperThread();
  ~HelperThread();  // joins, unless a call has not come back: then the thread is left behind

  HelperThread(const HelperThread&) = delete;
  HelperThread& operator=(const HelperThread&) = delete;

  // Has the thread make the call, which owns all that it uses: it may outlive everybody. False when an earlier one has
  // not come back.
  bool begin(std::function<void()> call);
  // True once it has come back; what it has thrown is thrown here. False when the deadline has passed first.
  bool wait(Deadline deadline);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ringdp
