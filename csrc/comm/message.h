// One point-to-point message in flight: a send or a receive, its memory, and whom it was matched with.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "base/dtype.h"
#include "comm/pending.h"

namespace ringdp::comm {

enum class Direction { kSend, kReceive };

constexpr int kAnySource = -1;

// What the caller asks of a group. The memory must stay valid until the message is done.
struct MessageRequest {
  int peer = kAnySource;  // group rank; kAnySource is for receives only
  int32_t tag = 0;
  DType dtype = DType::kU8;
  int64_t count = 0;       // elements
  void* memory = nullptr;  // a send only reads it
  Deadline deadline = Deadline::never();
  Ready ready;             // of a send; later sends of the group wait, too
  Ending ending;
};

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

  // The rank at the other end: peer(), or who a receive from any source was matched with; kAnySource before.
  // For other threads than the driver valid once done().
  int partner() const { return partner_; }

  std::string describe() const override;
  std::string waits_for() const;  // by the driver: what its partner has not done, "has not posted a matching receive"
  Deadline::Clock::time_point last_moved() const { return last_moved_; }  // by the driver

 private:
  friend class Mailbox;  // the only writer of what follows
  const Direction direction_;
  const MessageRequest request_;
  int partner_;
  bool matched_ = false;  // both sides agree: payload may move
  uint64_t order_ = 0;    // of posting, in its mailbox
  uint64_t id_ = 0;       // of the offer, as its sender numbered it
  size_t moved_ = 0;      // payload bytes
  Deadline::Clock::time_point last_moved_;
};

// "float32 x 4"
std::string describe_payload(DType dtype, int64_t count);

}  // namespace ringdp::comm
