#include "comm/control.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/crc32c.h"

namespace ringdp::comm {
namespace {

constexpr uint32_t kMagic = 0x72646332;  // "rdc2"

struct Header {
  uint32_t magic;
  uint8_t kind, error;
  uint16_t text_bytes;
  int32_t culprit;
  int32_t origin;
  uint64_t seq;
  uint32_t text_sum;  // CRC-32C
  uint32_t sum;       // of what is before: `text_bytes` is not waited for unless it is right
};
static_assert(sizeof(Header) == 32);

uint32_t sum_of(const Header& h) { return crc32c(0, &h, offsetof(Header, sum)); }

bool valid(const Header& h) {
  return h.magic == kMagic && h.sum == sum_of(h) && h.kind <= static_cast<uint8_t>(ControlKind::kGoodbye) &&
         h.error <= static_cast<uint8_t>(ErrorKind::kInternal) && h.text_bytes <= kMaxText;
}

[[noreturn]] void refuse() { throw Error(ErrorKind::kInternal, "bytes on a control socket are no control message"); }

}  // namespace

std::string encode(const ControlMessage& m) {
  const std::string text = m.text.substr(0, kMaxText);
  Header h{kMagic,
           static_cast<uint8_t>(m.kind),
           static_cast<uint8_t>(m.error),
           static_cast<uint16_t>(text.size()),
           m.culprit,
           m.origin,
           m.seq,
           crc32c(0, text.data(), text.size()),
           0};
  h.sum = sum_of(h);
  std::string bytes(reinterpret_cast<const char*>(&h), sizeof h);
  return bytes + text;
}

std::vector<ControlMessage> ControlParser::feed(const char* bytes, size_t size) {
  std::vector<ControlMessage> messages;
  pending_.append(bytes, size);
  size_t at = 0;
  while (pending_.size() - at >= sizeof(Header)) {
    Header h;
    std::memcpy(&h, pending_.data() + at, sizeof h);
    if (!valid(h)) refuse();
    if (pending_.size() - at < sizeof h + h.text_bytes) break;
    std::string text = pending_.substr(at + sizeof h, h.text_bytes);
    if (h.text_sum != crc32c(0, text.data(), text.size())) refuse();
    messages.push_back({static_cast<ControlKind>(h.kind), static_cast<ErrorKind>(h.error), h.culprit, h.seq, std::move(text),
                        h.origin});
    at += sizeof h + h.text_bytes;
  }
  pending_.erase(0, at);
  return messages;
}

void send_control(transport::SocketView socket, const ControlMessage& message) {
  // Heartbeats to a stopped peer must not fill the socket: a message cut in two would read as garbage later.
  constexpr int kMaxQueuedHeartbeats = 4096;
  int queued = 0;
  const bool may_wait = message.kind == ControlKind::kHeartbeat;
  if (may_wait && ::ioctl(socket.fd(), SIOCOUTQ, &queued) == 0 && queued > kMaxQueuedHeartbeats) return;
  const std::string bytes = encode(message);
  socket.post(bytes.data(), bytes.size());
}

Drained drain_control(transport::SocketView socket, ControlParser& parser, std::vector<ControlMessage>& messages) {
  char bytes[2048];
  for (;;) {
    const ssize_t n = socket.recv(bytes, sizeof bytes);
    if (n > 0) {
      for (ControlMessage& m : parser.feed(bytes, n)) messages.push_back(std::move(m));
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return Drained::kOpen;
    } else if (n < 0 && errno == EPROTO) {
      refuse();
    } else {
      const bool cut = n < 0 && (errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH);
      return cut ? Drained::kUnreachable : Drained::kClosed;
    }
  }
}

}  // namespace ringdp::comm
