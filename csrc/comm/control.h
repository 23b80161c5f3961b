// What ranks tell each other beside the collectives, on the control socket of each pair: alive, failed, leaving.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/socket.h"

namespace ringdp::comm {

enum class ControlKind : uint8_t { kHeartbeat, kAbort, kGoodbye };

struct ControlMessage {
  ControlKind kind = ControlKind::kHeartbeat;
  ErrorKind error = ErrorKind::kInternal;  // kAbort: what the sender latched
  int32_t culprit = -1;                    // kAbort: group rank at fault
  uint64_t seq = 0;                        // kGoodbye: collectives the sender has finished
  std::string text;                        // kAbort: its message; kGoodbye: for which exception; cut to kMaxText bytes
  int32_t origin = -1;                     // kAbort: the rank that gave up first; others pass its words on
};

constexpr size_t kMaxText = 1500;
constexpr size_t kMaxLastWords = 200;  // of a goodbye: more is not shown

std::string encode(const ControlMessage& message);

// Cuts messages out of a byte stream. Holds at most one message's bytes, whatever the peer sends.
class ControlParser {
 public:
  // Appends received bytes and takes the complete messages out, with printable texts. Error(kInternal) on bytes that
  // are no message.
  std::vector<ControlMessage> feed(const char* bytes, size_t size);

 private:
  std::string pending_;
};

// Best effort and non-blocking: a full or broken socket loses the message (its peer is told by the close).
void send_control(transport::SocketView socket, const ControlMessage& message);

enum class Drained { kOpen, kClosed, kUnreachable };  // kUnreachable: the network gave the peer up
// Reads what has arrived; appends messages. Never blocks. Error(kInternal) as of feed().
Drained drain_control(transport::SocketView socket, ControlParser& parser, std::vector<ControlMessage>& messages);

}  // namespace ringdp::comm
