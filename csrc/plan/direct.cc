#include "plan/direct.h"

#include <algorithm>

#include "plan/builder.h"
#include "plan/segment.h"
#include "plan/window.h"

namespace ringdp::plan {
namespace {

constexpr int kRawRound = 0;
constexpr int kResultRound = 1;

// In-place safety: the result of a segment of slice p comes from p, and p can fold it only when it holds my raw
// segment; so kOutput is overwritten only where kInput has been sent.
class Direct {
 public:
  explicit Direct(const Problem& problem)
      : problem_(problem), builder_("direct", problem), send_(problem.world), recv_(problem.world) {
    for (int peer : peers()) send_[peer] = builder_.add_send_lane(peer);
    for (int peer : peers()) recv_[peer] = builder_.add_recv_lane(peer);
    own_ = builder_.add_lane("fold");
    elements_ = segment_elements(slice(0).count(), problem.dtype, problem.segment_bytes);
  }

  Plan build() {
    switch (problem_.what) {
      case Collective::kAllReduce:
        reduce();
        share_results();
        break;
      case Collective::kReduceScatter: reduce(); break;
      case Collective::kAllGather: gather(); break;
      case Collective::kBroadcast: broadcast(); break;
      case Collective::kBarrier: break;  // executors exchange notes with every peer first: that is the barrier
    }
    return builder_.finish();
  }

 private:
  // Starting with the next rank, so that no rank is everyone's first target.
  std::vector<int> peers() const {
    std::vector<int> order;
    for (int i = 1; i < problem_.world; ++i) order.push_back((problem_.rank + i) % problem_.world);
    return order;
  }

  // What rank `owner` folds (all_reduce) or holds at the end: extent inside its tensor.
  Extent slice(int owner) const {
    if (problem_.what == Collective::kAllReduce) return balanced_part(problem_.count, problem_.world, owner);
    return {0, problem_.count};
  }
  int64_t segments(int owner) const { return ceil_div(slice(owner).count(), elements_); }
  Extent piece(int owner, int64_t s) const { return segment(slice(owner), elements_, s); }
  Ref raw(int owner, int64_t s) const {
    return builder_.input(problem_.what == Collective::kReduceScatter ? owner : 0, piece(owner, s));
  }

  void reduce() {
    for (int peer : peers()) {
      for (int64_t s = 0; s < segments(peer); ++s) builder_.send(send_[peer], peer, kRawRound, raw(peer, s));
    }
    const int64_t slot_bytes = std::min(elements_, slice(problem_.rank).count()) * size_of(problem_.dtype);
    std::vector<Window> windows;
    for (int peer = 0; peer < problem_.world; ++peer) windows.emplace_back(builder_, slots_for(peer), slot_bytes);
    for (int64_t s = 0; s < segments(problem_.rank); ++s) folds_.push_back(fold(s, windows));
  }

  int slots_for(int peer) const {
    return peer == problem_.rank ? 0 : static_cast<int>(std::min<int64_t>(kWindow, segments(problem_.rank)));
  }

  After fold(int64_t s, std::vector<Window>& windows) {
    const Extent mine = piece(problem_.rank, s);
    std::vector<Ref> srcs(problem_.world);
    std::vector<int> slots(problem_.world);
    std::vector<After> received;
    srcs[problem_.rank] = raw(problem_.rank, s);
    for (int peer : peers()) {
      const Window::Slot slot = windows[peer].take();
      slots[peer] = slot.index;
      srcs[peer] = Builder::scratch(slot.offset, Form::kRaw, mine.count());
      received.push_back(builder_.recv(recv_[peer], peer, kRawRound, srcs[peer], slot.free));
    }
    const After done = builder_.fold(own_, srcs, {builder_.output(0, mine)}, true, received);
    for (int peer : peers()) windows[peer].release_after(slots[peer], done);
    return done;
  }

  void share_results() {
    for (int peer : peers()) {
      for (int64_t s = 0; s < segments(problem_.rank); ++s) {
        builder_.send(send_[peer], peer, kResultRound, builder_.output(0, piece(problem_.rank, s)), {folds_[s]});
      }
      for (int64_t s = 0; s < segments(peer); ++s) {
        builder_.recv(recv_[peer], peer, kResultRound, builder_.output(0, piece(peer, s)));
      }
    }
  }

  void gather() {
    const Extent whole = {0, problem_.count};
    if (problem_.count > 0) builder_.copy(own_, builder_.input(0, whole), builder_.output(problem_.rank, whole));
    for (int peer : peers()) {
      for (int64_t s = 0; s < segments(peer); ++s) {
        builder_.send(send_[peer], peer, kRawRound, builder_.input(0, piece(peer, s)));
        builder_.recv(recv_[peer], peer, kRawRound, builder_.output(peer, piece(peer, s)));
      }
    }
  }

  void broadcast() {
    const int root = problem_.root;
    for (int64_t s = 0; s < segments(root); ++s) {
      if (problem_.rank != root) {
        builder_.recv(recv_[root], root, kRawRound, builder_.output(0, piece(root, s)));
        continue;
      }
      for (int peer : peers()) builder_.send(send_[peer], peer, kRawRound, builder_.input(0, piece(root, s)));
    }
  }

  const Problem& problem_;
  Builder builder_;
  std::vector<int> send_, recv_;  // lanes by peer
  int own_ = 0;                   // lane of folds and copies
  int64_t elements_ = 1;          // per segment
  std::vector<After> folds_;      // by segment of the own slice
};

}  // namespace

Plan direct(const Problem& problem) { return Direct(problem).build(); }

}  // namespace ringdp::plan
