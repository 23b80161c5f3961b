#include <algorithm>

#include "plan/builder.h"
#include "plan/ring.h"
#include "plan/ring_gather.h"
#include "plan/segment.h"
#include "plan/window.h"

namespace ringdp::plan {
namespace {

// Chunks longer than the window go round in groups of kWindow segments: partial sums wait for their next round in
// scratch, so a whole chunk must never be in flight. In-place safety: a chunk's result is written here only after
// this rank's own part of it was folded or sent.
class RotatedRing {
 public:
  RotatedRing(const Problem& problem, const RotatedStart& start)
      : problem_(problem),
        unit_(start.unit),
        widens_(start.widens),
        builder_("ring/rotated", problem),
        lanes_(builder_, problem),
        world_(problem.world),
        scatter_(problem.what == Collective::kReduceScatter),
        largest_(scatter_ ? problem.largest_part() : chunk(0).count()),
        elements_(segment_elements(largest_, problem.dtype, problem.segment_bytes, kMaxSegments / (2 * problem.world))),
        segments_(ceil_div(largest_, elements_)),
        // all_reduce: chunk c starts at rank c. reduce_scatter: one later, so that it ends where it belongs.
        start_(problem.rank - (scatter_ ? 1 : 0)),
        slot_bytes_(std::min(elements_, largest_) * size_of(wide_of(problem.dtype))),
        received_(builder_, kWindow, slot_bytes_),
        partial_(builder_, 2 * kWindow, slot_bytes_),
        held_(segments_) {}

  Plan build() {
    for (int64_t group = 0; group < segments_; group += kWindow) {
      for (int s = 0; s < world_ - 1; ++s) {
        for (int64_t k = group; k < std::min(group + kWindow, segments_); ++k) {
          send(s, k);
          receive(s, k);
        }
      }
    }
    if (!scatter_) gather();
    return builder_.finish();
  }

 private:
  struct Held {
    Ref ref;
    After after;
    int slot = 0;
  };

  bool starts_wide() const { return widens_ && wide_of(problem_.dtype) != problem_.dtype; }
  Extent chunk(int c) const {
    return scatter_ ? Extent{0, problem_.part(c)} : balanced_part(problem_.count, world_, c, unit_);
  }
  Ref own(int c, int64_t k) const {
    return builder_.input(scatter_ ? c : 0, segment(chunk(c), elements_, k));
  }
  Ref result(int c, int64_t k) const { return builder_.output(0, segment(chunk(c), elements_, k)); }

  void send(int s, int64_t k) {
    const Ref mine = own(wrap(start_ - s, world_), k);
    if (mine.count == 0) return;
    if (s == 0 && !starts_wide()) {
      builder_.send(lanes_.send, lanes_.next, s, mine);
      return;
    }
    // Every hop of a chunk then has the same bytes.
    if (s == 0) fold_partial({mine}, {}, k);
    const After sent = builder_.send(lanes_.send, lanes_.next, s, held_[k].ref, {held_[k].after});
    partial_.release_after(held_[k].slot, sent);
  }

  void receive(int s, int64_t k) {
    const int c = wrap(start_ - 1 - s, world_);
    const Ref mine = own(c, k);
    if (mine.count == 0) return;
    const Window::Slot in = received_.take();
    const Ref prefix = Builder::scratch(in.offset, s == 0 && !starts_wide() ? Form::kRaw : Form::kWide, mine.count);
    const After arrived = builder_.recv(lanes_.recv, lanes_.previous, s, prefix, in.free);
    if (s < world_ - 2) {
      fold_partial({prefix, mine}, {arrived}, k);
    } else {
      held_[k] = {result(c, k), {}};
      held_[k].after = builder_.fold(lanes_.fold, {prefix, mine}, {held_[k].ref}, true, {arrived});
    }
    received_.release_after(in.index, held_[k].after);
  }

  // Into the slot from which segment `k` is sent next.
  void fold_partial(const std::vector<Ref>& srcs, std::vector<After> after, int64_t k) {
    const Window::Slot slot = partial_.take();
    after.insert(after.end(), slot.free.begin(), slot.free.end());
    const Ref sum = Builder::scratch(slot.offset, Form::kWide, srcs[0].count);
    held_[k] = {sum, builder_.fold(lanes_.fold, srcs, {sum}, false, after), slot.index};
  }

  void gather() {
    RingGather pass;
    pass.first = problem_.rank + 1;  // the chunk whose sum ended here
    pass.base_round = world_ - 1;
    pass.segments = segments_;
    pass.own = pass.ref = [this](int c, int64_t k) { return result(wrap(c, world_), k); };
    for (const Held& held : held_) pass.ready.push_back(held.after);
    gather_round_the_ring(builder_, lanes_, world_, pass);
  }

  const Problem& problem_;
  const int64_t unit_;
  const bool widens_;
  Builder builder_;
  const RingLanes lanes_;
  const int world_;
  const bool scatter_;
  const int64_t largest_, elements_, segments_;  // of the largest chunk, per segment, of the largest chunk
  const int start_;
  const int64_t slot_bytes_;
  Window received_, partial_;
  std::vector<Held> held_;  // by segment: what this rank sends in the next round
};

}  // namespace

Plan ring_rotated(const Problem& problem, const RotatedStart& start) { return RotatedRing(problem, start).build(); }

}  // namespace ringdp::plan
