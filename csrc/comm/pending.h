// The work that a caller waits for: a collective or a point-to-point message, from its submission to its end.
//
// Any thread may read it; only the group's driver completes it. error(), seconds() and results are valid once done().
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/dtype.h"
#include "collective/executor.h"
#include "comm/fingerprint.h"

namespace ringdp::comm {

// Callbacks of the driver at the end of the work, in this order. Each may be empty and must not block.
struct Ending {
  std::function<void()> epilogue;                       // after success, before done()
  std::function<void(std::exception_ptr)> before_done;  // runs before any waiter returns
  std::function<void(std::exception_ptr)> on_done;      // after done()
};

// Whether the inputs of the work are ready. The driver asks until it returns true; the code that makes it true calls
// Engine::kick(). Empty: at once.
using Ready = std::function<bool()>;

class Pending {
 public:
  virtual ~Pending() = default;

  bool done() const { return done_.load(std::memory_order_acquire); }
  std::exception_ptr error() const { return error_; }  // null on success

  Deadline deadline() const { return deadline_; }
  Deadline::Clock::time_point submitted() const { return submitted_; }
  double seconds() const { return std::chrono::duration<double>(finished_ - submitted_).count(); }

  // When a caller began to wait for it; time_point::max() before that. Work is reported late only if a caller waits: a
  // receive may be posted long before its message is due.
  Deadline::Clock::time_point waited_since() const {
    return Deadline::Clock::time_point(Deadline::Clock::duration(waited_since_.load(std::memory_order_relaxed)));
  }

  // "all_reduce(SUM, float32 x 4) #3", "recv(float32 x 4 from rank 1, tag 7)".
  virtual std::string describe() const = 0;
  // The same without its number.
  virtual std::string call() const { return describe(); }

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

  // Returns on_done, which the caller runs after announcing the end to waiters.
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

// Checksums that accompany a collective. Complete once it is done.
struct Digests {
  uint64_t own = 0;                  // sent in the collective's header; 0: none
  std::vector<uint64_t> all;         // by rank
  bool with_sums = true;             // whether `summed` is wanted, for which all data is read once more
  collective::Contributions summed;  // of a reduction: what this rank summed, and computed
};

// A request for a collective. Buffers must stay valid until it is done.
struct Request {
  OpDesc desc;  // seq, group and generation are filled in by the group
  collective::Buffers buffers;
  Deadline deadline = Deadline::never();
  bool asynchronous = true;  // false: the caller waits at once and drives it itself
  Ready ready;               // later collectives of the group wait for it too
  Ending ending;
  std::shared_ptr<Digests> digests;  // may be null
};

// One collective in flight.
class Op final : public Pending {
 public:
  explicit Op(Request request)
      : Pending(request.deadline, std::move(request.ready), std::move(request.ending)), request_(std::move(request)) {}

  const OpDesc& desc() const { return request_.desc; }
  std::string describe() const override { return call() + " #" + std::to_string(desc().seq); }
  std::string call() const override { return comm::describe(desc()); }

 private:
  friend class Group;  // the only writer
  Request request_;
};

enum class Direction { kSend, kReceive };

constexpr int kAnySource = -1;

// A request for a send or a receive. The memory must stay valid until the message is done.
struct MessageRequest {
  int peer = kAnySource;  // group rank; kAnySource is for receives only
  int32_t tag = 0;
  DType dtype = DType::kU8;
  int64_t count = 0;       // elements
  void* memory = nullptr;  // a send only reads it
  Deadline deadline = Deadline::never();
  Ready ready;  // sends only; later sends of the group wait for it too
  Ending ending;
};

// One point-to-point message in flight.
class Message final : public Pending {
 public:
  Message(Direction direction, MessageRequest request)
      : Pending(request.deadline, std::move(request.ready), std::move(request.ending)),
        direction_(direction),
        request_(std::move(request)),
        partner_(request_.peer),
        last_moved_(submitted()) {}

  Direction direction() const { return direction_; }
  int peer() const { return request_.peer; }
  int32_t tag() const { return request_.tag; }
  DType dtype() const { return request_.dtype; }
  int64_t count() const { return request_.count; }
  size_t bytes() const { return static_cast<size_t>(count() * size_of(dtype())); }

  // The rank at the other end: peer(), or the one that a receive from any source was matched with; kAnySource before.
  // Threads other than the driver may call it once done().
  int partner() const { return partner_; }

  std::string describe() const override;
  // Driver only. What its partner has not done: "has not posted a matching receive (tag 5)".
  std::string waits_for() const;
  Deadline::Clock::time_point last_moved() const { return last_moved_; }  // driver only

 private:
  friend class Mailbox;  // the only writer of what follows
  const Direction direction_;
  const MessageRequest request_;
  int partner_;
  bool matched_ = false;  // the payload may move
  uint64_t order_ = 0;    // its number among the messages posted to the mailbox
  uint64_t id_ = 0;       // of the offer, as its sender numbered it
  size_t moved_ = 0;      // payload bytes
  Deadline::Clock::time_point last_moved_;
};

// "float32 x 4"
std::string describe_payload(DType dtype, int64_t count);

}  // namespace ringdp::comm
