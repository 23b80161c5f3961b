#include "plan/host_trees.h"

#include <algorithm>
#include <map>
#include <utility>

#include "plan/arena.h"
#include "plan/direct.h"
#include "plan/host_stages.h"
#include "plan/pipeline.h"

namespace ringdp::plan {
namespace {

// Order=tree is the sum of one leaf per rank.
Roots roots_of_ranks(const Problem& problem) {
  if (problem.roots) return *problem.roots;
  Roots roots{problem.world, {}};
  for (int rank = 0; rank < problem.world; ++rank) roots.by_rank.push_back({{rank, rank + 1}});
  return roots;
}

int first_rank(const Problem& problem, int host) {
  return host < static_cast<int>(problem.hosts.size()) ? problem.hosts[host] : problem.world;
}

// In-place safety: a slice of kOutput is written where that slice of kInput has been added up, as the result of a slice
// depends on the roots of all hosts. Nobody waits in a circle: segment s of every slice is sent before the next one,
// and memory for the next is free once the roots of one that all owners have sent before are added up.
class HostTrees {
 public:
  explicit HostTrees(const Problem& problem)
      : problem_(problem),
        at_(problem),
        owns_(at_.member < at_.smallest),
        ranks_(roots_of_ranks(problem)),
        hosts_(roots_of_hosts(problem)),
        all_hosts_(hosts_.program()),
        builder_("hierarchy", problem),
        arena_(builder_, problem, at_.member, at_.members, at_.smallest * problem.most_contributed()),
        stages_(problem, at_, builder_, arena_, at_.smallest * arena_.piece_elements()),
        elements_(segment_elements(problem, ceil_div(arena_.piece_elements(), at_.hosts))) {
    if (owns_) prepare();
  }

  // Why no slot is overwritten while it is read: as in hierarchy.cc. Contributions of stage k are read before the
  // barrier that comes ahead of copy_in(k+2). Both ends of a link list roots of stage k before results of stage k-1.
  Plan build() {
    if (stages_.count() == 0) return builder_.finish();
    stages_.copy_in(0);
    stages_.barrier();
    for (int k = 0; k <= stages_.count(); ++k) {
      stages_.copy_in(k + 1);
      if (k < stages_.count()) reduce_own_slice(k);
      if (k < stages_.count()) send_slices(k);
      if (k > 0) publish(k - 1);
      stages_.barrier();
      if (k > 0) stages_.copy_out(k - 1);
    }
    return builder_.finish();
  }

 private:
  // One root of this host: which contributions of its ranks, and how they add up.
  struct HostRoot {
    std::vector<bool> contains;  // by contribution
    AddProgram program;
    int64_t own_slice;  // where its own slice lies in scratch
  };

  void prepare() {
    own_ = builder_.add_channel("fold");
    const int64_t slice = ceil_div(arena_.piece_elements(), at_.hosts), longest = std::min(elements_, slice);
    const int64_t wide = size_of(wide_of(problem_.dtype));
    std::vector<LeafNode> mine;
    for (int rank = first_rank(problem_, at_.host); rank < first_rank(problem_, at_.host + 1); ++rank) {
      mine.insert(mine.end(), ranks_.by_rank[rank].begin(), ranks_.by_rank[rank].end());
    }
    for (const LeafNode root : hosts_.by_rank[at_.host]) {
      HostRoot& added = host_roots_.emplace_back();
      std::vector<LeafNode> parts;
      for (const LeafNode part : mine) {
        added.contains.push_back(root.contains(part));
        if (root.contains(part)) parts.push_back(part);
      }
      added.program = add_program(root, parts);
      added.own_slice = builder_.reserve_scratch(slice * wide);
    }
    for (const int host : others()) {
      const int peer = at_.counterpart(problem_, host);
      Link& link = links_[host];
      link.peer = peer;
      link.send = builder_.add_send_channel(peer);
      link.recv = builder_.add_recv_channel(peer);
      for (size_t i = 0; i < host_roots_.size(); ++i) link.sent.emplace_back(builder_, kWindow, longest * wide);
      for (size_t i = 0; i < hosts_.by_rank[host].size(); ++i) {
        link.received.emplace_back(builder_, kWindow, longest * wide);
      }
    }
  }

  // Beginning with the next one, so that not all send to the same host first.
  std::vector<int> others() const {
    std::vector<int> hosts;
    for (int i = 1; i < at_.hosts; ++i) hosts.push_back((at_.host + i) % at_.hosts);
    return hosts;
  }

  // Of this rank's piece.
  Extent slice(int k, int host) const {
    const Extent mine = stages_.piece(k, at_.member), part = balanced_part(mine.count(), at_.hosts, host);
    return {mine.begin + part.begin, mine.begin + part.end};
  }
  Extent part(int k, int host, int64_t s) const { return segment(slice(k, host), elements_, s); }
  int64_t segments(int k, int host) const { return ceil_div(slice(k, host).count(), elements_); }
  int64_t most_segments(int k) const { return segments(k, 0); }  // balanced parts do not grow
  static int round_of_roots(int k) { return 2 * k; }
  static int round_of_results(int k) { return 2 * k + 1; }

  // What this host's ranks contribute to a root of it.
  std::vector<Ref> contributions(int k, Extent part, const HostRoot& root) const {
    std::vector<Ref> refs;
    size_t i = 0;
    for (int q = 0; q < at_.members; ++q) {
      const int rank = first_rank(problem_, at_.host) + q;
      for (int r = 0; r < problem_.contributed(rank); ++r) {
        if (!root.contains[i++]) continue;
        const int64_t begin = part.begin - stages_.piece(k, at_.member).begin;
        refs.push_back(q == at_.member ? builder_.input(r, part)
                                       : arena_.piece(q, k, stages_.place(at_.member, r), part.count(), begin));
      }
    }
    return refs;
  }

  After add_up(int k, Extent part, const HostRoot& root, const Ref& into, std::vector<After> free) {
    return builder_.fold_along(root.program, arena_.id(), contributions(k, part, root), {into}, false, std::move(free));
  }

  // Folds of this host's roots wait for those of the stage before with what is in their memory.
  void reduce_own_slice(int k) {
    if (!owns_) return;
    std::vector<std::vector<Ref>> own(segments(k, at_.host));
    std::vector<std::vector<After>> ready(own.size());
    for (size_t s = 0; s < own.size(); ++s) {
      const Extent mine = part(k, at_.host, static_cast<int64_t>(s));
      for (const HostRoot& root : host_roots_) {
        const int64_t at = root.own_slice + static_cast<int64_t>(s) * elements_ * size_of(wide_of(problem_.dtype));
        own[s].push_back(Builder::scratch(at, Form::kWide, mine.count()));
        std::vector<After> free;
        if (s < results_.size()) free = {results_[s]};
        ready[s].push_back(add_up(k, mine, root, own[s].back(), free));
      }
    }
    results_before_ = std::exchange(results_, {});
    for (size_t s = 0; s < own.size(); ++s) {
      results_.push_back(add_up_hosts(k, part(k, at_.host, static_cast<int64_t>(s)), own[s], ready[s]));
    }
  }

  After add_up_hosts(int k, Extent mine, const std::vector<Ref>& own, std::vector<After> ready) {
    std::vector<Ref> in_order;
    std::vector<std::pair<Window*, int>> taken;
    for (int host = 0; host < at_.hosts; ++host) {
      if (host == at_.host) in_order.insert(in_order.end(), own.begin(), own.end());
      if (host == at_.host) continue;
      Link& link = links_.at(host);
      for (Window& window : link.received) {
        const Window::Slot slot = window.take();
        taken.emplace_back(&window, slot.index);
        in_order.push_back(Builder::scratch(slot.offset, Form::kWide, mine.count()));
        ready.push_back(builder_.recv(link.recv, link.peer, round_of_roots(k), in_order.back(), slot.free));
      }
    }
    const After done = builder_.fold_along(all_hosts_, own_, in_order, {builder_.output(0, mine)}, true, ready);
    for (const auto& [window, slot] : taken) window->release_after(slot, done);
    return done;
  }

  void send_slices(int k) {
    for (int64_t s = 0; owns_ && s < most_segments(k); ++s) {
      for (const int host : others()) {
        const Extent theirs = part(k, host, s);
        if (theirs.count() == 0) continue;
        Link& link = links_.at(host);
        for (size_t i = 0; i < host_roots_.size(); ++i) {
          const Window::Slot slot = link.sent[i].take();
          const Ref sum = Builder::scratch(slot.offset, Form::kWide, theirs.count());
          const After added = add_up(k, theirs, host_roots_[i], sum, slot.free);
          link.sent[i].release_after(slot.index, builder_.send(link.send, link.peer, round_of_roots(k), sum, {added}));
        }
      }
    }
  }

  // Exchanges the results of a stage, and shows them to this host's ranks.
  void publish(int k) {
    if (!owns_) return;
    // In the last iteration no stage has replaced them.
    const std::vector<After>& results = k + 1 < stages_.count() ? results_before_ : results_;
    std::vector<After> ready = results;
    for (const int host : others()) {
      Link& link = links_.at(host);
      for (int64_t s = 0; s < segments(k, at_.host); ++s) {
        const Ref result = builder_.output(0, part(k, at_.host, s));
        builder_.send(link.send, link.peer, round_of_results(k), result, {results[s]});
      }
      for (int64_t s = 0; s < segments(k, host); ++s) {
        const Ref result = builder_.output(0, part(k, host, s));
        ready.push_back(builder_.recv(link.recv, link.peer, round_of_results(k), result));
      }
    }
    if (stages_.alone()) return;
    const Extent mine = stages_.piece(k, at_.member);
    arena_.copy(builder_.output(0, mine), arena_.piece(at_.member, k, at_.member, mine.count()), ready);
  }

  // To and from the rank that owns this rank's piece on another host.
  struct Link {
    int peer, send, recv;
    std::vector<Window> sent, received;  // by root of this host, of the other one
  };

  const Problem& problem_;
  const HostPlace at_;
  const bool owns_;  // this rank owns a piece of each stage
  const Roots ranks_, hosts_;
  const AddProgram all_hosts_;  // over the roots of all hosts
  Builder builder_;
  ArenaChannel arena_;
  HostStages stages_;
  const int64_t elements_;            // of a segment
  int own_ = 0;                       // the channel that adds up the roots of all hosts
  std::vector<HostRoot> host_roots_;  // of this host
  std::map<int, Link> links_;         // by host
  std::vector<After> results_,
      results_before_;  // by segment of the own slice: of the latest stage, and of the one before
};

}  // namespace

Roots roots_of_hosts(const Problem& problem) {
  const Roots ranks = roots_of_ranks(problem);
  Roots hosts{ranks.micro_batches, {}};
  for (int host = 0; host < static_cast<int>(problem.hosts.size()); ++host) {
    std::vector<int> leaves;
    for (int rank = first_rank(problem, host); rank < first_rank(problem, host + 1); ++rank) {
      for (const LeafNode root : ranks.by_rank[rank]) {
        for (int leaf = root.begin; leaf < root.end; ++leaf) leaves.push_back(leaf);
      }
    }
    hosts.by_rank.push_back(roots_of(ranks.micro_batches, leaves));
  }
  return hosts;
}

Plan host_trees(const Problem& problem) {
  if (!ArenaChannel::suits_roots(problem, HostPlace(problem).smallest)) return direct(problem);
  return HostTrees(problem).build();
}

}  // namespace ringdp::plan
