// Shared by the pipelines on links: segments, the scratch slots that they pass through, and channels to all peers.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "plan/builder.h"

namespace ringdp::plan {

// Elements per segment of an extent of up to `count` elements: as many whole units as segment_bytes holds, at least
// one; more where the plan's `pipelines` extents together would have more than most_segments.
int64_t segment_elements(const Problem& problem, int64_t count, int64_t pipelines = 1);

// Elements of the longest extent.
int64_t longest(const std::vector<Extent>& extents);

// Segment `k` of `whole`; empty beyond its end.
inline Extent segment(Extent whole, int64_t elements, int64_t k) {
  return {std::min(whole.begin + k * elements, whole.end), std::min(whole.begin + (k + 1) * elements, whole.end)};
}

// Segments in flight per stream: enough to receive, fold and send at the same time with one to spare.
constexpr int kWindow = 4;

// A few slots of scratch used in turn, so that a pipeline's memory does not grow with the message. A slot is written
// again only after its last reader, which take() returns.
class Window {
 public:
  struct Slot {
    int index = 0;
    int64_t offset = 0;       // bytes into scratch
    std::vector<After> free;  // steps that must be done before the slot is written
  };

  Window(Builder& builder, int slots, int64_t slot_bytes);

  Slot take();
  void release_after(int index, After reader) { readers_[index] = {reader}; }
  void release_after(int index, std::vector<After> readers) { readers_[index] = std::move(readers); }

 private:
  std::vector<int64_t> offsets_;
  std::vector<std::vector<After>> readers_;  // of the latest use; empty before the first
  size_t next_ = 0;
};

// For plans in which every rank talks to every other: a channel per peer and direction, and one for local steps, so
// that a slow peer does not hold back the others.
struct PeerChannels {
  PeerChannels(Builder& builder, const Problem& problem);

  std::vector<int> peers;       // starting with the next rank, so that ranks do not all send to the same peer first
  std::vector<int> send, recv;  // channels by peer
  int own = 0;                  // channel of folds and copies
};

}  // namespace ringdp::plan
