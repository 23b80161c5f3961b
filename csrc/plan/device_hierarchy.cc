#include "plan/device_hierarchy.h"

#include <algorithm>
#include <optional>

#include "plan/device_plan.h"
#include "plan/host_place.h"
#include "plan/segment.h"
#include "plan/window.h"

namespace ringdp::plan {
namespace {

class DeviceHierarchy {
 public:
  explicit DeviceHierarchy(const Problem& problem)
      : problem_(problem),
        at_(problem),
        last_(at_.hosts - 1),
        pack_(pack_elements(problem.dtype)),
        builder_("hierarchy", problem),
        lane_(builder_.add_lane("device")),
        elements_(std::max<int64_t>(problem.segment_bytes / kDevicePackBytes, 1) * pack_),
        segments_(ceil_div(mine().count(), elements_)) {
    if (segments_ > 0) connect();
  }

  // Both ends of a link name the prefix of segment s before the result of segment s - H, which goes in the same round.
  Plan build() {
    meet();
    for (int64_t s = 0; segments_ > 0 && s < segments_ + at_.hosts; ++s) {
      if (s < segments_) fold_and_pass(s);
      if (s >= at_.hosts && at_.host < last_) take_result(s - at_.hosts);
    }
    meet();
    return builder_.finish();
  }

 private:
  // The chunk that this rank owns; none of ranks that the smallest host has not.
  Extent mine() const {
    if (at_.member >= at_.smallest) return {0, 0};
    return balanced_part(problem_.count, at_.smallest, at_.member, pack_);
  }
  Extent part(int64_t s) const {
    const Extent found = segment({0, mine().count()}, elements_, s);
    return {mine().begin + found.begin, mine().begin + found.end};
  }
  bool passes_input() const { return at_.host == 0 && at_.members == 1; }  // which is its own partial sum
  // In which form sums come from the host before.
  Form form_of_prefix() const {
    const bool from_one = at_.host == 1 && problem_.hosts[1] == 1;
    return from_one ? Form::kRaw : Form::kWide;
  }

  void connect() {
    next_ = at_.counterpart(problem_, at_.host + 1);
    previous_ = at_.counterpart(problem_, at_.host - 1);
    send_ = builder_.add_send_lane(next_);
    recv_ = builder_.add_recv_lane(previous_);
    const int64_t wide = std::min(elements_, mine().count()) * size_of(wide_of(problem_.dtype));
    if (at_.host > 0) received_.emplace(builder_, 1, wide);
    if (at_.host < last_ && !passes_input()) partial_.emplace(builder_, 1, wide);
  }

  void meet() {
    if (at_.members == 1) return;
    builder_.signal(lane_);
    builder_.wait(lane_);
  }

  int round(int64_t s) const { return static_cast<int>(s) + at_.host; }  // in which segment s is folded here

  void fold_and_pass(int64_t s) {
    if (passes_input()) {
      builder_.send(send_, next_, round(s) + 1, builder_.input(0, part(s)));
      return;
    }
    std::vector<Ref> srcs = inputs(s);
    std::vector<After> ready;
    std::optional<Window::Slot> prefix;
    if (at_.host > 0) {
      prefix = received_->take();
      srcs.insert(srcs.begin(), Builder::scratch(prefix->offset, form_of_prefix(), part(s).count()));
      ready = {builder_.recv(recv_, previous_, round(s), srcs[0], prefix->free)};
    }
    const After folded = at_.host == last_ ? finish(s, srcs, ready) : pass_on(s, srcs, ready);
    if (prefix) received_->release_after(prefix->index, folded);
  }

  // In rank order.
  std::vector<Ref> inputs(int64_t s) const {
    std::vector<Ref> refs;
    for (int q = 0; q < at_.members; ++q) {
      refs.push_back(q == at_.member ? builder_.input(0, part(s)) : builder_.peer_input(q, part(s)));
    }
    return refs;
  }

  After pass_on(int64_t s, const std::vector<Ref>& srcs, std::vector<After> ready) {
    const Window::Slot slot = partial_->take();
    ready.insert(ready.end(), slot.free.begin(), slot.free.end());
    const Ref sum = Builder::scratch(slot.offset, Form::kWide, part(s).count());
    const After folded = builder_.fold(lane_, srcs, {sum}, false, ready);
    partial_->release_after(slot.index, builder_.send(send_, next_, round(s) + 1, sum, {folded}));
    return folded;
  }

  After finish(int64_t s, const std::vector<Ref>& srcs, const std::vector<After>& ready) {
    const Ref result = builder_.output(0, part(s));
    const After folded = builder_.fold(lane_, srcs, {result}, true, ready);
    builder_.send(send_, next_, round(s) + 1, result, {folded});
    show(s, {folded});
    return folded;
  }

  void take_result(int64_t s) {
    const Ref result = builder_.output(0, part(s));
    const int arrival = round(s) + at_.hosts;
    const After came = builder_.recv(recv_, previous_, arrival, result);
    if (at_.host + 1 < last_) builder_.send(send_, next_, arrival + 1, result, {came});
    show(s, {came});
  }

  // Beginning with the next member, lest all write to the first at once.
  void show(int64_t s, const std::vector<After>& ready) {
    for (int k = 1; k < at_.members; ++k) {
      const int member = (at_.member + k) % at_.members;
      builder_.copy(lane_, builder_.output(0, part(s)), builder_.peer_output(member, part(s)), ready);
    }
  }

  const Problem& problem_;
  const HostPlace at_;
  const int last_;  // host
  const int64_t pack_;
  Builder builder_;
  const int lane_;
  const int64_t elements_, segments_;
  int next_ = 0, previous_ = 0;               // ranks: the owners of my chunk on the hosts around
  int send_ = 0, recv_ = 0;                   // lanes
  std::optional<Window> received_, partial_;  // prefix in, prefix out
};

}  // namespace

Plan device_hierarchy(const Problem& problem) { return DeviceHierarchy(problem).build(); }

}  // namespace ringdp::plan
