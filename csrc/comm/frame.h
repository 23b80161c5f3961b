// The fixed-size frames between mailboxes: a sender OFFERs, the receiver ACCEPTs, then DATA and the payload follow.
//
// Pure functions. Nothing in a frame is a length to believe: the payload's size follows from the receive it is for.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/dtype.h"

namespace ringdp::comm {

enum class FrameKind : uint8_t { kOffer = 1, kAccept = 2, kData = 3 };

struct Frame {
  FrameKind kind = FrameKind::kOffer;
  uint64_t id = 0;  // of the offer: 1, 2, ... per sender and receiver
  int32_t tag = 0;  // this and the next two: of an offer, else 0
  DType dtype = DType::kU8;
  int64_t count = 0;
};

constexpr size_t kFrameBytes = 32;
using FrameBytes = std::array<std::byte, kFrameBytes>;

FrameBytes encode(const Frame& frame);

// nullopt unless encode() can have written it.
std::optional<Frame> decode(const FrameBytes& bytes);

}  // namespace ringdp::comm
