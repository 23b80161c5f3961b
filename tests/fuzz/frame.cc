// The frames between mailboxes (csrc/comm/frame.h).
#include "comm/frame.h"

#include "target.h"

namespace ringdp::fuzz {
namespace {

using comm::Frame;
using comm::FrameKind;

bool is_possible(const Frame& frame) {
  const bool bare = frame.tag == 0 && frame.dtype == DType::kU8 && frame.count == 0;
  const int kind = static_cast<int>(frame.kind);
  return kind >= 1 && kind <= 3 && (frame.kind == FrameKind::kOffer || bare) && frame.id != 0 && frame.count >= 0 &&
         static_cast<int>(frame.dtype) < kDTypeCount;
}

}  // namespace

FUZZ_TARGET(frame) {
  Input fields = input;
  comm::FrameBytes raw;
  for (std::byte& byte : raw) byte = input.number<std::byte>();
  const auto read = comm::decode(raw);
  require(!read || comm::encode(*read) == raw, "a frame is what encode() writes");

  Frame frame;
  frame.kind = static_cast<FrameKind>(fields.up_to(4));
  frame.dtype = static_cast<DType>(fields.up_to(kDTypeCount));
  frame.tag = fields.number<int32_t>();
  frame.id = fields.number<uint64_t>();
  frame.count = fields.number<int64_t>();
  comm::FrameBytes bytes = comm::encode(frame);
  const auto copy = comm::decode(bytes);
  require(copy.has_value() == is_possible(frame), "what can be meant is read, and nothing else");
  require(!copy || comm::encode(*copy) == bytes, "a frame survives the wire");
  bytes[fields.number<uint8_t>() % bytes.size()] ^= static_cast<std::byte>(1 << fields.up_to(7));
  require(!comm::decode(bytes), "one changed bit is seen");
}

}  // namespace ringdp::fuzz
