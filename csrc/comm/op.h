// One collective in flight: what was asked, on which memory, and how it ended.
#pragma once
#include <atomic>
#include <exception>
#include <functional>
#include <memory>

#include "base/deadline.h"
#include "collective/executor.h"
#include "comm/fingerprint.h"

namespace ringdp::comm {

// What the caller asks of a group. Buffers must stay valid until the op is done.
struct Request {
  OpDesc desc;  // seq, group and generation are filled in by the group
  collective::Buffers buffers;
  Deadline deadline = Deadline::never();
  bool asynchronous = true;          // false: the caller waits at once and drives it itself
  std::function<void()> epilogue;    // by the driver, after success and before done(); may be empty
  std::function<void(std::exception_ptr)> on_done;  // by the driver, after done(); must not block; may be empty
};

class Op {
 public:
  explicit Op(Request request) : request_(std::move(request)), submitted_(Deadline::Clock::now()) {}

  bool done() const { return done_.load(std::memory_order_acquire); }
  std::exception_ptr error() const { return error_; }  // valid once done(); null on success

  const OpDesc& desc() const { return request_.desc; }
  Deadline deadline() const { return request_.deadline; }
  Deadline::Clock::time_point submitted() const { return submitted_; }
  double seconds() const { return std::chrono::duration<double>(finished_ - submitted_).count(); }

 private:
  friend class Group;  // the only writer
  Request request_;
  Deadline::Clock::time_point submitted_, finished_;
  std::exception_ptr error_;
  bool reported_late_ = false;
  std::atomic<bool> done_{false};
};

}  // namespace ringdp::comm
