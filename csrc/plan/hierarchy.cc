#include "plan/hierarchy.h"

#include <algorithm>
#include <optional>

#include "plan/arena.h"
#include "plan/direct.h"
#include "plan/host_stages.h"
#include "plan/host_trees.h"
#include "plan/pipeline.h"
#include "plan/ring.h"

namespace ringdp::plan {
namespace {

class Hierarchy {
 public:
  explicit Hierarchy(const Problem& problem)
      : problem_(problem),
        at_(problem),
        last_(at_.hosts - 1),
        owns_(at_.member < at_.smallest),
        builder_("hierarchy", problem),
        arena_(builder_, problem, at_.member, at_.members, at_.smallest),
        stages_(problem, at_, builder_, arena_,
                problem.in_kernels() ? std::max<int64_t>(problem.count, 1) : at_.smallest * arena_.piece_elements()),
        piece_elements_(problem.in_kernels() ? stages_.piece(0, 0).count() : arena_.piece_elements()),
        elements_(segment_elements(problem, piece_elements_)) {
    if (owns_) connect();
  }

  Plan build() {
    problem_.in_kernels() ? reduce_tensors() : reduce_slots();
    return builder_.finish();
  }

 private:
  // Why no slot is overwritten while it is read: copy_in(k+1) shares its slot with stage k-1. It does not write my own
  // piece, and the others were read in fold_and_pass(k-1), before the last barrier. publish_result(k-1) writes my own
  // piece over that of stage k-3; copy_out(k-3) was done on all ranks before the last barrier. Two stages are in flight
  // between the hosts: results of one come back while the next is folded.
  void reduce_slots() {
    if (stages_.count() == 0) return;
    stages_.copy_in(0);
    stages_.barrier();
    for (int k = 0; k <= stages_.count(); ++k) {
      stages_.copy_in(k + 1);
      for (int64_t s = 0; k < stages_.count() && s < segments(k); ++s) fold_and_pass(k, s);
      if (k > 0) publish_result(k - 1);
      stages_.barrier();
      if (k > 0) stages_.copy_out(k - 1);
    }
  }

  // All inputs are ready after the first barrier. Until the second, only its owner accesses a piece on a host, so a
  // result may overwrite the input. Both ends of a link name the prefix of segment s before the result of segment s -
  // H, which goes in the same round.
  void reduce_tensors() {
    stages_.barrier();
    for (int64_t s = 0; segments(0) > 0 && s < segments(0) + at_.hosts; ++s) {
      if (s < segments(0)) fold_and_pass(0, s);
      if (s >= at_.hosts && at_.host < last_) give(part(0, s - at_.hosts), {take_result(0, s - at_.hosts)});
    }
    stages_.barrier();
  }

  void connect() {
    next_ = at_.counterpart(problem_, at_.host + 1);
    previous_ = at_.counterpart(problem_, at_.host - 1);
    send_ = builder_.add_send_channel(next_);
    recv_ = builder_.add_recv_channel(previous_);
    const int slots = problem_.in_kernels() ? 1 : kWindow;  // segments of tensors follow one another, round by round
    const int64_t wide = std::min(elements_, piece_elements_) * size_of(wide_of(problem_.dtype));
    if (at_.host > 0) received_.emplace(builder_, slots, wide);
    if (at_.host < last_ && !passes_input()) partial_.emplace(builder_, slots, wide);
  }

  // A lone rank's input is its host's partial sum; it is sent raw, as no kernel only converts to the wide type.
  bool passes_input() const { return problem_.on_device && at_.host == 0 && stages_.alone(); }
  Form form_of_prefix() const {
    const bool is_input = problem_.on_device && at_.host == 1 && problem_.hosts[1] == 1;
    return is_input ? Form::kRaw : Form::kWide;
  }

  Extent mine(int k) const { return stages_.piece(k, at_.member); }
  Extent part(int k, int64_t s) const { return segment(mine(k), elements_, s); }
  int64_t segments(int k) const { return owns_ ? ceil_div(mine(k).count(), elements_) : 0; }
  // Round in which segment `s` of stage `k` leaves the first host; kernels reduce it in the round before.
  int round(int k, int64_t s) const {
    return static_cast<int>(k * ceil_div(piece_elements_, elements_) + s) + (problem_.in_kernels() ? 1 : 0);
  }

  // The inputs of this host's ranks, in rank order.
  std::vector<Ref> contributions(int k, int64_t s) const {
    const Ref own = builder_.input(0, part(k, s));
    if (!problem_.in_kernels()) return arena_.in_rank_order(own, k, at_.member, s * elements_);
    std::vector<Ref> refs;
    for (int q = 0; q < at_.members; ++q) refs.push_back(q == at_.member ? own : builder_.peer_input(q, part(k, s)));
    return refs;
  }

  void fold_and_pass(int k, int64_t s) {
    if (passes_input()) {
      builder_.send(send_, next_, round(k, s), builder_.input(0, part(k, s)));
      return;
    }
    std::vector<Ref> srcs = contributions(k, s);
    std::vector<After> ready;
    std::optional<Window::Slot> prefix;
    if (at_.host > 0) {
      prefix = received_->take();
      srcs.insert(srcs.begin(), Builder::scratch(prefix->offset, form_of_prefix(), part(k, s).count()));
      ready = {builder_.recv(recv_, previous_, round(k, s) + at_.host - 1, srcs[0], prefix->free)};
    }
    const After folded = at_.host == last_ ? finish(part(k, s), round(k, s), srcs, ready)
                                           : pass_on(part(k, s).count(), round(k, s), srcs, ready);
    if (prefix) received_->release_after(prefix->index, folded);
  }

  After finish(Extent part, int round, const std::vector<Ref>& srcs, const std::vector<After>& ready) {
    const Ref result = builder_.output(0, part);
    const After folded = builder_.fold(arena_.id(), srcs, {result}, true, ready);
    builder_.send(send_, next_, round + last_, result, {folded});
    if (problem_.in_kernels()) give(part, {folded});
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

  // Receives from the previous host and sends on to the next.
  After take_result(int k, int64_t s) {
    const Ref result = builder_.output(0, part(k, s));
    const int arrival = round(k, s) + last_ + at_.host;
    const After came = builder_.recv(recv_, previous_, arrival, result);
    if (at_.host + 1 < last_) builder_.send(send_, next_, arrival + 1, result, {came});
    return came;
  }

  // Both ends of a link list partial sums of stage k before results of stage k-1, so they agree on their order.
  void publish_result(int k) {
    if (!owns_) return;
    std::vector<After> ready;
    for (int64_t s = 0; at_.host < last_ && s < segments(k); ++s) ready = {take_result(k, s)};
    if (stages_.alone()) return;
    arena_.copy(builder_.output(0, mine(k)), arena_.piece(at_.member, k, at_.member, mine(k).count()), ready);
  }

  // Copies to the outputs of the host's ranks, beginning with the next one, so that they do not all write to the same.
  void give(Extent part, const std::vector<After>& ready) {
    for (int i = 1; i < at_.members; ++i) {
      const int member = (at_.member + i) % at_.members;
      arena_.copy(builder_.output(0, part), builder_.peer_output(member, part), ready);
    }
  }

  const Problem& problem_;
  const HostPlace at_;
  const int last_;   // the last host
  const bool owns_;  // this rank owns a piece of each stage
  Builder builder_;
  ArenaChannel arena_;
  HostStages stages_;
  const int64_t piece_elements_, elements_;   // elements of the largest piece and of a segment
  int next_ = 0, previous_ = 0;               // ranks that own my pieces on the neighbouring hosts
  int send_ = 0, recv_ = 0;                   // channels
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
  const bool are_single = problem.hosts.size() == static_cast<size_t>(problem.world);
  if (problem.sums_along_tree()) return are_single ? direct(problem) : host_trees(problem);
  if (are_single) return ring(problem, Order::kRank);
  return Hierarchy(problem).build();
}

}  // namespace ringdp::plan
