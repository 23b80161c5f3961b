#include "comm/frame.h"

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "base/crc32c.h"

namespace ringdp::comm {
namespace {

constexpr uint32_t kMagic = 0x72646d32;  // "rdm2"

// Fixed width, no padding, host byte order (a group's hosts are of one kind; the magic tells).
struct Wire {
  uint32_t magic;
  uint8_t kind, dtype;
  uint16_t zero;
  uint64_t id;
  int64_t count;
  int32_t tag;
  uint32_t sum;  // CRC-32C of what is before
};
static_assert(sizeof(Wire) == kFrameBytes);
static_assert(std::has_unique_object_representations_v<Wire>);

uint32_t sum_of(const Wire& w) { return crc32c(0, &w, offsetof(Wire, sum)); }

bool valid(const Wire& w) {
  const bool offer = w.kind == static_cast<uint8_t>(FrameKind::kOffer);
  const bool answer =
      w.kind == static_cast<uint8_t>(FrameKind::kAccept) || w.kind == static_cast<uint8_t>(FrameKind::kData);
  const bool bare = w.tag == 0 && w.dtype == 0 && w.count == 0;
  return w.magic == kMagic && w.zero == 0 && w.sum == sum_of(w) && w.id != 0 && w.count >= 0 && w.dtype < kDTypeCount &&
         (offer || (answer && bare));
}

}  // namespace

FrameBytes encode(const Frame& f) {
  Wire w{kMagic, static_cast<uint8_t>(f.kind), static_cast<uint8_t>(f.dtype), 0, f.id, f.count, f.tag, 0};
  w.sum = sum_of(w);
  FrameBytes bytes;
  std::memcpy(bytes.data(), &w, sizeof w);
  return bytes;
}

std::optional<Frame> decode(const FrameBytes& bytes) {
  Wire w;
  std::memcpy(&w, bytes.data(), sizeof w);
  if (!valid(w)) return std::nullopt;
  return Frame{static_cast<FrameKind>(w.kind), w.id, w.tag, static_cast<DType>(w.dtype), w.count};
}

}  // namespace ringdp::comm
