#include "plan/hierarchy.h"

#include <algorithm>
#include <optional>

#include "plan/arena.h"
#include "plan/direct.h"
#include "plan/host_place.h"
#include "plan/ring.h"
#include "plan/segment.h"
#include "plan/window.h"

namespace ringdp::plan {
namespace {

// The same on every host: how a tensor is cut into stages, pieces and segments.
class Hierarchy {
 public:
  explicit Hierarchy(const Problem& problem)
      : problem_(problem),
        at_(problem),
        last_(at_.hosts - 1),
        owns_(at_.member < at_.smallest),
        builder_("hierarchy", problem),
        arena_(builder_, problem, at_.member, at_.members, at_.smallest),
        stages_(static_cast<int>(ceil_div(problem.count, at_.smallest * arena_.piece_elements()))),
        elements_(segment_elements(arena_.piece_elements(), problem.dtype, problem.segment_bytes)) {
    if (owns_) connect();
  }

  // Why no slot is overwritten under a reader: copy_in(k+1) shares its slot with stage k-1. It leaves my own piece
  // alone, and the others were read in fold_and_pass(k-1), before the last barrier. show(k-1) writes my own piece,
  // where stage k-3 was; copy_out(k-3) was over everywhere before the last barrier.
  // Two stages are under way between the hosts: results of one come back while the next is folded.
  Plan build() {
    if (stages_ == 0) return builder_.finish();
    copy_in(0);
    barrier();
    for (int k = 0; k <= stages_; ++k) {
      copy_in(k + 1);
      if (k < stages_) fold_and_pass(k);
      if (k > 0) show(k - 1);
      barrier();
      if (k > 0) copy_out(k - 1);
    }
    return builder_.finish();
  }

 private:
  void connect() {
    next_ = at_.counterpart(problem_, at_.host + 1);
    previous_ = at_.counterpart(problem_, at_.host - 1);
    send_ = builder_.add_send_lane(next_);
    recv_ = builder_.add_recv_lane(previous_);
    const int64_t wide = std::min(elements_, arena_.piece_elements()) * size_of(wide_of(problem_.dtype));
    if (at_.host > 0) received_.emplace(builder_, kWindow, wide);
    if (at_.host < last_) partial_.emplace(builder_, kWindow, wide);
  }

  bool alone() const { return at_.members == 1; }
  void barrier() {
    if (!alone()) arena_.barrier();
  }

  Extent piece(int k, int owner) const {
    const Extent stage = segment({0, problem_.count}, at_.smallest * arena_.piece_elements(), k);
    const Extent part = balanced_part(stage.count(), at_.smallest, owner);
    return {stage.begin + part.begin, stage.begin + part.end};
  }
  Extent mine(int k) const { return piece(k, at_.member); }
  int64_t segments(int k) const { return ceil_div(mine(k).count(), elements_); }
  // Round in which segment `s` of stage `k` leaves the first host.
  int round(int k, int64_t s) const {
    return static_cast<int>(k * ceil_div(arena_.piece_elements(), elements_) + s);
  }

  void copy_in(int k) {
    for (int i = 0; !alone() && k < stages_ && i < at_.smallest; ++i) {
      if (i == at_.member) continue;
      const Extent theirs = piece(k, i);
      arena_.copy(builder_.input(0, theirs), arena_.piece(at_.member, k, i, theirs.count()));
    }
  }

  void copy_out(int k) {
    for (int i = 0; !alone() && i < at_.smallest; ++i) {
      if (i == at_.member) continue;
      const Extent theirs = piece(k, i);
      arena_.copy(arena_.piece(i, k, i, theirs.count()), builder_.output(0, theirs));
    }
  }

  void fold_and_pass(int k) {
    for (int64_t s = 0; owns_ && s < segments(k); ++s) {
      const Extent part = segment(mine(k), elements_, s);
      std::vector<Ref> srcs = arena_.in_rank_order(builder_.input(0, part), k, at_.member, s * elements_);
      std::vector<After> ready;
      std::optional<Window::Slot> prefix;
      if (at_.host > 0) {
        prefix = received_->take();
        srcs.insert(srcs.begin(), Builder::scratch(prefix->offset, Form::kWide, part.count()));
        ready = {builder_.recv(recv_, previous_, round(k, s) + at_.host - 1, srcs[0], prefix->free)};
      }
      const After folded = at_.host == last_ ? finish(part, round(k, s), srcs, ready)
                                             : pass_on(part.count(), round(k, s), srcs, ready);
      if (prefix) received_->release_after(prefix->index, folded);
    }
  }

  After finish(Extent part, int round, const std::vector<Ref>& srcs, const std::vector<After>& ready) {
    const Ref result = builder_.output(0, part);
    const After folded = builder_.fold(arena_.id(), srcs, {result}, true, ready);
    builder_.send(send_, next_, round + last_, result, {folded});
    return folded;
  }

  After pass_on(int64_t count, int round, const std::vector<Ref>& srcs, std::vector<After> ready) {
    const Window::Slot slot = partial_->take();
    ready.insert(ready.end(), slot.free.begin(), slot.free.end());
    const Ref sum = Builder::scratch(slot.offset, Form::kWide, count);
    const After folded = builder_.fold(arena_.id(), srcs, {sum}, false, ready);
    partial_->release_after(slot.index, builder_.send(send_, next_, round + at_.host, sum, {folded}));
    return folded;
  }

  // Both ends of a link name partial sums of stage k before results of stage k-1: so they agree on the stream.
  void show(int k) {
    if (!owns_) return;
    std::vector<After> ready;
    for (int64_t s = 0; at_.host < last_ && s < segments(k); ++s) {
      const Ref result = builder_.output(0, segment(mine(k), elements_, s));
      const int arrival = round(k, s) + last_ + at_.host;
      ready = {builder_.recv(recv_, previous_, arrival, result)};
      if (at_.host + 1 < last_) builder_.send(send_, next_, arrival + 1, result, ready);
    }
    if (alone()) return;
    arena_.copy(builder_.output(0, mine(k)), arena_.piece(at_.member, k, at_.member, mine(k).count()), ready);
  }

  const Problem& problem_;
  const HostPlace at_;
  const int last_;   // host
  const bool owns_;  // pieces
  Builder builder_;
  ArenaLane arena_;
  const int stages_;
  const int64_t elements_;                    // per segment
  int next_ = 0, previous_ = 0;               // ranks: the owners of my pieces on the hosts around
  int send_ = 0, recv_ = 0;                   // lanes
  std::optional<Window> received_, partial_;  // prefixes in, prefixes out
};

}  // namespace

Plan hierarchy(const Problem& problem) {
  if (problem.hosts.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                "algorithm=hierarchy needs each host's ranks to be contiguous, and `hosts` is empty: number the ranks "
                "host by host, or use algorithm=direct");
  }
  if (problem.what != Collective::kAllReduce) return direct(problem);
  if (problem.hosts.size() == 1) return arena(problem);
  if (problem.hosts.size() == static_cast<size_t>(problem.world)) return ring_in_rank_order(problem);
  return Hierarchy(problem).build();
}

}  // namespace ringdp::plan
