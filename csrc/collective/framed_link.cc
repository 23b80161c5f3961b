#include "collective/framed_link.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/crc32c.h"
#include "base/error.h"

namespace ringdp::collective {
namespace {

// A frame in progress holds up all others.
constexpr size_t kLargestFrame = 256 << 10;
// What all peers together may send ahead of kMostInFlight collectives, and a peer ahead of one. A rank may have to keep
// nearly twice as much: what arrived ahead for those in flight here, and at a peer that is as many further.
constexpr size_t kAheadInAll = 16 << 20;
constexpr size_t kLeastAhead = 16 << 10, kMostAhead = 1 << 20;

uint32_t sum_of(const Frame& frame) { return crc32c(0, &frame, offsetof(Frame, sum)); }

}  // namespace

size_t ahead_bytes(int world) {
  const size_t lanes = kMostInFlight * static_cast<size_t>(std::max(1, world - 1));
  return std::clamp(kAheadInAll / lanes, kLeastAhead, kMostAhead);
}

Frame make_frame(uint64_t seq, size_t bytes) {
  Frame frame{static_cast<uint32_t>(seq), static_cast<uint32_t>(bytes)};
  frame.sum = sum_of(frame);
  return frame;
}

size_t FramedLink::allowance(uint64_t seq) const {
  if (seq <= turn_) return kLargestFrame;
  const uint64_t behind = seq - turn_;
  return std::min(kLargestFrame, ahead_ - (behind < lanes_.size() ? lanes_[behind].ahead : 0));
}

FramedLink::Lane& FramedLink::lane(uint64_t seq) {
  if (seq - turn_ >= lanes_.size()) lanes_.resize(seq - turn_ + 1);
  return lanes_[seq - turn_];
}

size_t FramedLink::try_send(uint64_t seq, const void* bytes, size_t size) {
  if (!is_open()) {
    const size_t allowed = std::min(size, allowance(seq));
    if (allowed == 0) return 0;
    open_frame(seq, bytes, allowed);
  }
  if (out_.seq != seq) return 0;
  size_t sent = 0;
  if (out_.begin < out_.end) {
    out_.begin += push(out_.staged.data() + out_.begin, out_.end - out_.begin);
    if (out_.begin < out_.end) return 0;
    sent = out_.end - sizeof(Frame);
    out_.left -= sent;
  }
  const size_t direct = push(static_cast<const std::byte*>(bytes) + sent, out_.left);
  out_.left -= direct;
  return sent + direct;
}

void FramedLink::open_frame(uint64_t seq, const void* bytes, size_t size) {
  if (seq > turn_) lane(seq).ahead += size;
  const Frame frame = make_frame(seq, size);
  const size_t first = std::min(size, kStaged);
  std::memcpy(out_.staged.data(), &frame, sizeof frame);
  std::memcpy(out_.staged.data() + sizeof frame, bytes, first);
  out_.seq = seq;
  out_.left = size;
  out_.begin = 0;
  out_.end = sizeof frame + first;
  frame_bytes_ += sizeof frame;
}

// On a broken link no frame waits for its end: whoever needs the link meets its error.
size_t FramedLink::push(const void* bytes, size_t size) {
  try {
    return link_.try_send(bytes, size);
  } catch (...) {
    out_.left = 0;
    throw;
  }
}

void FramedLink::finish_sending(uint64_t seq) {
  if (seq < turn_) return;
  lane(seq).finished = true;
  for (; !lanes_.empty() && lanes_.front().finished; ++turn_) lanes_.pop_front();
}

size_t FramedLink::try_recv(uint64_t seq, void* bytes, size_t size) {
  if (const size_t n = take_kept(seq, bytes, size)) return n;
  while (open_next(seq)) {
    if (in_.seq == seq) {
      const size_t n = link_.try_recv(bytes, std::min(size, in_.left));
      in_.left -= n;
      return n;
    }
    if (in_.seq < seq || !keep(seq)) break;
  }
  return 0;
}

// The peer is less than 2^31 collectives ahead or behind.
bool FramedLink::open_next(uint64_t seq) {
  if (in_.left > 0) return true;
  in_.header += link_.try_recv(reinterpret_cast<std::byte*>(&in_.frame) + in_.header, sizeof(Frame) - in_.header);
  if (in_.header < sizeof(Frame)) return false;
  const size_t bytes = in_.frame.bytes;
  if (in_.frame.sum != sum_of(in_.frame) || bytes == 0 || bytes > kLargestFrame) {
    throw Error(ErrorKind::kInternal,
                "what rank " + std::to_string(peer_) +
                    " sent has changed on its way: the header of a frame is damaged. Nothing was returned; look for "
                    "damaged memory or network cards between the two ranks",
                peer_);
  }
  in_.header = 0;
  in_.seq = seq + static_cast<uint64_t>(static_cast<int32_t>(in_.frame.seq - static_cast<uint32_t>(seq)));
  in_.left = bytes;
  arrived_ = true;
  return true;
}

// `reader` wants bytes, so the peer had not sent all of it when it began this frame: the frame was ahead of its turn,
// and of a collective that was in flight beside it.
bool FramedLink::keep(uint64_t reader) {
  Kept& kept = kept_[in_.seq];
  if (in_.seq - reader >= kMostInFlight || kept.bytes.size() - kept.begin + in_.left > ahead_) {
    throw Error(ErrorKind::kInternal,
                "rank " + std::to_string(peer_) + " sent more of collective #" + std::to_string(in_.seq) +
                    " than it may while #" + std::to_string(reader) + " runs (" + std::to_string(ahead_) +
                    " bytes): it runs another build of ringdp, or its memory is damaged; restart the job",
                peer_);
  }
  std::array<std::byte, 16384> arrived;
  while (in_.left > 0) {
    const size_t n = link_.try_recv(arrived.data(), std::min(arrived.size(), in_.left));
    if (n == 0) return false;
    kept.bytes.insert(kept.bytes.end(), arrived.data(), arrived.data() + n);
    in_.left -= n;
  }
  return true;
}

size_t FramedLink::take_kept(uint64_t seq, void* bytes, size_t size) {
  const auto found = kept_.find(seq);
  if (found == kept_.end()) return 0;
  Kept& kept = found->second;
  const size_t n = std::min(size, kept.bytes.size() - kept.begin);
  if (n > 0) std::memcpy(bytes, kept.bytes.data() + kept.begin, n);
  kept.begin += n;
  if (kept.begin == kept.bytes.size()) kept_.erase(found);
  return n;
}

}  // namespace ringdp::collective
