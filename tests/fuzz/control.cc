// What ranks tell each other beside the collectives (csrc/comm/control.h).
#include "comm/control.h"

#include "base/printable.h"
#include "target.h"

namespace ringdp::fuzz {
namespace {

using comm::ControlKind;
using comm::ControlMessage;

// All messages of a stream that comes in pieces of `piece` bytes; `refused` when it was refused at the end of them.
std::string parsed(const std::string& stream, size_t piece, bool* refused) {
  comm::ControlParser parser;
  std::string written;
  *refused = refuses({ErrorKind::kInternal}, [&] {
    for (size_t at = 0; at < stream.size(); at += piece) {
      const std::string part = stream.substr(at, piece);
      for (const ControlMessage& message : parser.feed(part.data(), part.size())) written += comm::encode(message);
    }
  });
  return written;
}

void check_stream(const std::string& stream, size_t piece) {
  bool refused = false, refused_whole = false;
  const std::string written = parsed(stream, piece, &refused);
  bool refused_again = false;
  require(parsed(written, piece, &refused_again) == written && !refused_again, "messages are what encode() writes");
  const std::string whole = parsed(stream, stream.size() + 1, &refused_whole);
  require(refused == refused_whole && (refused || whole == written), "it does not matter how a stream is cut");
}

}  // namespace

FUZZ_TARGET(control) {
  Input fields = input;
  const size_t piece = 1 + input.number<uint8_t>();
  check_stream(input.rest(), piece);

  fields.number<uint8_t>();
  std::string stream, printed;
  bool possible = true;
  while (fields.left() > 0) {
    ControlMessage message;
    message.kind = static_cast<ControlKind>(fields.up_to(3));
    message.error = static_cast<ErrorKind>(fields.up_to(6));
    message.culprit = fields.number<int32_t>();
    message.origin = fields.number<int32_t>();
    message.seq = fields.number<uint64_t>();
    message.text = fields.bytes(fields.number<uint16_t>() % (2 * comm::kMaxText));
    stream += comm::encode(message);
    message.text = printable(message.text.substr(0, comm::kMaxText), comm::kMaxText);
    printed += comm::encode(message);
    possible &= message.kind <= ControlKind::kGoodbye && message.error <= ErrorKind::kInternal;
  }
  check_stream(stream, piece);
  bool refused = false;
  const std::string written = parsed(stream, piece, &refused);
  require(refused != possible, "what can be meant is read, and nothing else");
  require(refused || written == printed, "messages survive the wire");
  if (!stream.empty()) stream[piece % stream.size()] ^= 1;
  check_stream(stream, piece);
}

}  // namespace ringdp::fuzz
