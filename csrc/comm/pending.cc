#include "comm/pending.h"

namespace ringdp::comm {

std::string describe_payload(DType dtype, int64_t count) {
  return std::string(name_of(dtype)) + " x " + std::to_string(count);
}

std::string Message::describe() const {
  const bool send = direction_ == Direction::kSend;
  const std::string whom = peer() == kAnySource ? "any rank" : "rank " + std::to_string(peer());
  return (send ? "send(" : "recv(") + describe_payload(dtype(), count()) + (send ? " to " : " from ") + whom +
         ", tag " + std::to_string(tag()) + ")";
}

std::string Message::waits_for() const {
  const bool send = direction_ == Direction::kSend;
  if (!matched_) {
    return (send ? "has not posted a matching receive (tag " : "has not posted a matching send (tag ") +
           std::to_string(tag()) + ")";
  }
  return (send ? "does not take its bytes (sent " : "does not give its bytes (received ") + std::to_string(moved_) +
         " of " + std::to_string(bytes()) + ")";
}

}  // namespace ringdp::comm
