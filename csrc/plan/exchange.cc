#include "plan/exchange.h"

#include <algorithm>
#include <vector>

#include "plan/builder.h"
#include "plan/direct.h"
#include "plan/pipeline.h"

namespace ringdp::plan {
namespace {

// In-place safety: a segment of kOutput is written where that segment of kInput has been sent to all. Nobody waits for
// another in a circle: a segment is received, and so can be sent, once the one a window before it has been reduced.
class Exchange {
 public:
  explicit Exchange(const Problem& problem)
      : problem_(problem),
        elements_(segment_elements(problem, problem.count)),
        segments_(ceil_div(problem.count, elements_)),
        builder_("exchange", problem),
        channels_(builder_, problem) {}

  Plan build() {
    const int64_t slot_bytes = std::min(elements_, problem_.count) * size_of(problem_.dtype);
    for (int peer = 0; peer < problem_.world; ++peer) {
      const int64_t slots = peer == problem_.rank ? 0 : std::min<int64_t>(kWindow, segments_);
      received_.emplace_back(builder_, static_cast<int>(slots), slot_bytes);
    }
    for (int64_t s = 0; s < segments_; ++s) reduce(segment({0, problem_.count}, elements_, s));
    return builder_.finish();
  }

 private:
  static constexpr int kRound = 0;

  void reduce(Extent part) {
    const Ref own = builder_.input(0, part);
    std::vector<After> ready;
    for (int peer : channels_.peers) ready.push_back(builder_.send(channels_.send[peer], peer, kRound, own));
    std::vector<Ref> srcs(problem_.world, own);
    std::vector<int> slots(problem_.world);
    for (int peer : channels_.peers) {
      const Window::Slot slot = received_[peer].take();
      slots[peer] = slot.index;
      srcs[peer] = Builder::scratch(slot.offset, Form::kRaw, part.count());
      ready.push_back(builder_.recv(channels_.recv[peer], peer, kRound, srcs[peer], slot.free));
    }
    const After done = builder_.fold(channels_.own, srcs, {builder_.output(0, part)}, true, ready);
    for (int peer : channels_.peers) received_[peer].release_after(slots[peer], done);
  }

  const Problem& problem_;
  const int64_t elements_;  // of a segment
  const int64_t segments_;
  Builder builder_;
  const PeerChannels channels_;
  std::vector<Window> received_;  // by peer
};

}  // namespace

Plan exchange(const Problem& problem) {
  return problem.what == Collective::kAllReduce && !problem.roots ? Exchange(problem).build() : direct(problem);
}

// (N-1) - 2(N-1)/N of the tensor.
int64_t largest_exchange(int world, int64_t more) {
  if (world <= 2) return kAnySize;
  return static_cast<int64_t>(static_cast<double>(more) * world / (static_cast<double>(world - 1) * (world - 2)));
}

}  // namespace ringdp::plan
