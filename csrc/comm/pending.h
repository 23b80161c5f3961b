// What a caller waits for: a collective or a message from its submission to its end.
//
// Any thread may look; only the group's driver ends it. error(), seconds() and results are valid once done().
#pragma once
#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "base/deadline.h"

namespace ringdp::comm {

// What the driver calls when the work ends, in this order; each may be empty and must not block.
struct Ending {
  std::function<void()> epilogue;                       // after success, before done()
  std::function<void(std::exception_ptr)> before_done;  // what must be over when a waiter returns
  std::function<void(std::exception_ptr)> on_done;      // after done()
};

// Whether work may begin: its inputs are there. Asked by the driver until it says so; who makes it true kicks the
// engine. Empty: at once.
using Ready = std::function<bool()>;

class Pending {
 public:
  virtual ~Pending() = default;

  bool done() const { return done_.load(std::memory_order_acquire); }
  std::exception_ptr error() const { return error_; }  // null on success

  Deadline deadline() const { return deadline_; }
  Deadline::Clock::time_point submitted() const { return submitted_; }
  double seconds() const { return std::chrono::duration<double>(finished_ - submitted_).count(); }

  // When a caller began to wait for it; in the far future before that. Nothing is late that nobody waits for: a receive
  // may be posted long before its message is due.
  Deadline::Clock::time_point waited_since() const {
    return Deadline::Clock::time_point(Deadline::Clock::duration(waited_since_.load(std::memory_order_relaxed)));
  }

  // "all_reduce(SUM, float32 x 4) #3", "recv(float32 x 4 from rank 1, tag 7)".
  virtual std::string describe() const = 0;

 protected:
  Pending(Deadline deadline, Ready ready, Ending ending)
      : ready_(std::move(ready)), ending_(std::move(ending)), deadline_(deadline), submitted_(Deadline::Clock::now()) {}

 private:
  friend class Group;  // the only writer

  bool may_begin() const { return !ready_ || ready_(); }

  void begin_wait() const {
    auto never = Deadline::Clock::duration::max().count();
    waited_since_.compare_exchange_strong(never, Deadline::Clock::now().time_since_epoch().count());
  }

  // Returns on_done, for the caller to run once everybody may see the end.
  std::function<void(std::exception_ptr)> finish(std::exception_ptr error) {
    if (ending_.before_done) ending_.before_done(error);
    error_ = std::move(error);
    finished_ = Deadline::Clock::now();
    auto on_done = std::move(ending_.on_done);
    ending_ = {};
    done_.store(true, std::memory_order_release);
    return on_done;
  }

  const Ready ready_;
  Ending ending_;
  const Deadline deadline_;
  const Deadline::Clock::time_point submitted_;
  Deadline::Clock::time_point finished_;
  std::exception_ptr error_;
  bool reported_late_ = false;
  mutable std::atomic<Deadline::Clock::rep> waited_since_{Deadline::Clock::duration::max().count()};
  std::atomic<bool> done_{false};
};

}  // namespace ringdp::comm
