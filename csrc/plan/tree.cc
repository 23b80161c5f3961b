#include "plan/tree.h"

#include <algorithm>
#include <optional>

#include "plan/builder.h"
#include "plan/direct.h"
#include "plan/pipeline.h"

namespace ringdp::plan {
namespace {

// Segment m is m rounds behind segment 0. In-place safety: a result derives from my partial sum of that segment, so it
// arrives only after kInput has been folded or sent.
class Tree {
 public:
  explicit Tree(const Problem& problem)
      : problem_(problem),
        builder_("tree", problem),
        root_(problem.what == Collective::kAllReduce ? 0 : problem.root),
        node_((problem.rank - root_ + problem.world) % problem.world),
        elements_(segment_elements(problem, problem.count)) {
    while ((1 << levels_) < problem.world) ++levels_;
    up_ = node_ == 0 ? levels_ : __builtin_ctz(node_);
    for (int level = 0; level < up_ && node_ + (1 << level) < problem.world; ++level) add_child(level);
    if (node_ != 0) parent_ = add_edge(node_ - (1 << up_));
    own_ = builder_.add_channel("fold");
  }

  Plan build() {
    const bool sums = problem_.what != Collective::kBroadcast, shares = problem_.what != Collective::kReduce;
    if (sums) reserve_windows();
    for (int64_t m = 0; m < ceil_div(problem_.count, elements_); ++m) {
      std::vector<After> ready;
      if (sums) ready = reduce(m);
      if (shares) broadcast(m, sums ? levels_ : 0, ready);
    }
    return builder_.finish();
  }

 private:
  // Another rank that this one talks to, and the channels to and from it.
  struct Edge {
    int peer = 0, send = 0, recv = 0;
  };
  struct Child {
    Edge edge;
    Form form = Form::kRaw;  // of its partial sum; a leaf sends its input as it is
  };

  int rank_of(int node) const { return (node + root_) % problem_.world; }
  Edge add_edge(int node) {
    const int peer = rank_of(node);
    return {peer, builder_.add_send_channel(peer), builder_.add_recv_channel(peer)};
  }
  void add_child(int level) {
    const int child = node_ + (1 << level);
    const bool leaf = child % 2 == 1 || child == problem_.world - 1;
    children_.push_back({add_edge(child), leaf ? Form::kRaw : Form::kWide});
  }

  Ref input(int64_t m) const { return builder_.input(0, segment({0, problem_.count}, elements_, m)); }
  Ref output(int64_t m) const { return builder_.output(0, segment({0, problem_.count}, elements_, m)); }

  void reserve_windows() {
    const int64_t wide = std::min(elements_, problem_.count) * size_of(wide_of(problem_.dtype));
    for (size_t i = 0; i < children_.size(); ++i) received_.emplace_back(builder_, kWindow, wide);
    if (!children_.empty()) sum_.emplace(builder_, kWindow, wide);
  }

  // Returns the steps that the result waits for, at the root.
  std::vector<After> reduce(int64_t m) {
    const int round = static_cast<int>(m) + up_;
    if (children_.empty()) {
      builder_.send(parent_.send, parent_.peer, round, input(m));
      return {};
    }
    const Window::Slot slot = sum_->take();
    const Ref sum = Builder::scratch(slot.offset, Form::kWide, input(m).count);
    const After summed = fold_children(m, sum, slot.free);
    const After read = node_ == 0 ? builder_.fold(own_, {sum}, {output(m)}, true)
                                  : builder_.send(parent_.send, parent_.peer, round, sum, {summed});
    sum_->release_after(slot.index, read);
    return {read};
  }

  After fold_children(int64_t m, const Ref& sum, const std::vector<After>& free) {
    After done;
    for (size_t level = 0; level < children_.size(); ++level) {
      const auto& [edge, form] = children_[level];
      const Window::Slot in = received_[level].take();
      const Ref theirs = Builder::scratch(in.offset, form, sum.count);
      std::vector<After> ready = {
          builder_.recv(edge.recv, edge.peer, static_cast<int>(m + static_cast<int64_t>(level)), theirs, in.free)};
      if (level == 0) ready.insert(ready.end(), free.begin(), free.end());
      done = builder_.fold(own_, {level == 0 ? input(m) : sum, theirs}, {sum}, false, ready);
      received_[level].release_after(in.index, done);
    }
    return done;
  }

  // `ready`: what the root waits for; all others wait for their parent.
  void broadcast(int64_t m, int base_round, std::vector<After> ready) {
    const int top = base_round + static_cast<int>(m) + levels_ - 1;  // round of level 0
    Ref held = problem_.what == Collective::kBroadcast ? input(m) : output(m);
    if (node_ != 0) {
      held = output(m);
      ready = {builder_.recv(parent_.recv, parent_.peer, top - up_, held)};
    }
    for (size_t level = children_.size(); level-- > 0;) {  // the longest branch first
      const Edge& edge = children_[level].edge;
      builder_.send(edge.send, edge.peer, top - static_cast<int>(level), held, ready);
    }
  }

  const Problem& problem_;
  Builder builder_;
  const int root_, node_;  // the root's rank, and this rank's number counted from it
  const int64_t elements_;
  int levels_ = 0, up_ = 0;      // levels of the tree, and the level at which this rank sends up
  std::vector<Child> children_;  // by level
  Edge parent_;
  int own_ = 0;
  std::vector<Window> received_;  // by level
  std::optional<Window> sum_;
};

}  // namespace

Plan tree(const Problem& problem) {
  switch (problem.what) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
      return Tree(problem).build();
    default:
      return direct(problem);
  }
}

}  // namespace ringdp::plan
