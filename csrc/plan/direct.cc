#include "plan/direct.h"

#include <algorithm>
#include <optional>

#include "plan/builder.h"
#include "plan/pipeline.h"

namespace ringdp::plan {
namespace {

constexpr int kRawRound = 0;
constexpr int kResultRound = 1;

// The slice of each owner: its part of a reduce_scatter, else its share of the tensor, cut at multiples of `unit`.
std::vector<Extent> slices_of(const Problem& problem, int64_t unit) {
  std::vector<Extent> slices;
  for (int owner = 0; owner < problem.world; ++owner) {
    const bool parts = problem.what == Collective::kReduceScatter;
    slices.push_back(parts ? Extent{0, problem.part(owner)} : balanced_part(problem.count, problem.world, owner, unit));
  }
  return slices;
}

// The slice that each owner reduces, cut into segments.
struct Slices {
  int64_t segments(int owner) const { return ceil_div(by_owner[owner].count(), segment_elements); }
  int64_t longest_segment(int owner) const { return std::min(segment_elements, by_owner[owner].count()); }
  Extent segment(int owner, int64_t s) const { return plan::segment(by_owner[owner], segment_elements, s); }

  std::vector<Extent> by_owner;
  int64_t segment_elements;
};

// Every rank sends each owner its slice, and the owner folds in rank order.
// In-place safety: the result of a segment of slice p comes from p, and p can fold it only when it holds my raw
// segment; so kOutput is overwritten only where kInput has been sent.
class OwnerFold {
 public:
  OwnerFold(const std::string& algorithm, const Problem& problem, const std::vector<Extent>& slices)
      : problem_(problem),
        slices_{slices, segment_elements(problem, longest(slices))},
        builder_(algorithm, problem),
        channels_(builder_, problem) {}

  Plan build() {
    for (int owner : channels_.peers) {
      for (int64_t s = 0; s < slices_.segments(owner); ++s) {
        for (int k = 0; k < problem_.contributed(problem_.rank); ++k) {
          builder_.send(channels_.send[owner], owner, kRawRound, raw(owner, k, s));
        }
      }
    }
    fold_own_slice();
    for (int owner : channels_.peers) {
      for (int64_t s = 0; gets_result(problem_.rank, owner) && s < slices_.segments(owner); ++s) {
        builder_.recv(channels_.recv[owner], owner, kResultRound, builder_.output(0, slices_.segment(owner, s)));
      }
    }
    return builder_.finish();
  }

 private:
  // Where a result is written: the output tensor, or, if only the root keeps it, a scratch slot that must be free
  // first.
  struct Place {
    Ref ref;
    std::vector<After> free;
    int slot = 0;
  };

  // Whether `rank` gets the result of `owner`'s slice.
  bool gets_result(int rank, int owner) const {
    if (problem_.what == Collective::kReduceScatter) return rank == owner;
    return problem_.what == Collective::kAllReduce || rank == problem_.root;
  }
  // Of this rank's `k`th contribution.
  Ref raw(int owner, int k, int64_t s) const {
    const bool parts = problem_.what == Collective::kReduceScatter;
    return builder_.input(parts ? k * problem_.world + owner : k, slices_.segment(owner, s));
  }

  void fold_own_slice() {
    const int me = problem_.rank;
    const int64_t slot_bytes = slices_.longest_segment(me) * size_of(problem_.dtype);
    const int slots = static_cast<int>(std::min<int64_t>(kWindow, slices_.segments(me)));
    if (slots == 0) return;
    received_.resize(problem_.world);
    for (int peer = 0; peer < problem_.world; ++peer) {
      for (int k = 0; peer != me && k < problem_.contributed(peer); ++k) {
        received_[peer].emplace_back(builder_, slots, slot_bytes);
      }
    }
    if (!gets_result(me, me)) for_root_.emplace(builder_, slots, slot_bytes);
    for (int64_t s = 0; s < slices_.segments(me); ++s) {
      const Place place = place_for_result(slices_.segment(me, s));
      share(place, fold(s, place));
    }
  }

  Place place_for_result(Extent mine) {
    if (!for_root_) return {builder_.output(0, mine), {}};
    const Window::Slot slot = for_root_->take();
    return {Builder::scratch(slot.offset, Form::kRaw, mine.count()), slot.free, slot.index};
  }

  After fold(int64_t s, const Place& place) {
    std::vector<std::vector<Ref>> contributed(problem_.world);
    for (int k = 0; k < problem_.contributed(problem_.rank); ++k) {
      contributed[problem_.rank].push_back(raw(problem_.rank, k, s));
    }
    std::vector<std::pair<Window*, int>> taken;
    std::vector<After> ready = place.free;
    for (int peer : channels_.peers) {
      for (Window& window : received_[peer]) {
        const Window::Slot slot = window.take();
        taken.emplace_back(&window, slot.index);
        const Ref into = Builder::scratch(slot.offset, Form::kRaw, place.ref.count);
        contributed[peer].push_back(into);
        ready.push_back(builder_.recv(channels_.recv[peer], peer, kRawRound, into, slot.free));
      }
    }
    std::vector<Ref> in_rank_order;
    for (const auto& of_rank : contributed) in_rank_order.insert(in_rank_order.end(), of_rank.begin(), of_rank.end());
    const After done = builder_.fold(channels_.own, in_rank_order, {place.ref}, true, ready);
    for (const auto& [window, slot] : taken) window->release_after(slot, done);
    return done;
  }

  void share(const Place& place, After folded) {
    for (int peer : channels_.peers) {
      if (!gets_result(peer, problem_.rank)) continue;
      const After sent = builder_.send(channels_.send[peer], peer, kResultRound, place.ref, {folded});
      if (for_root_) for_root_->release_after(place.slot, sent);  // the root is its only reader
    }
  }

  const Problem& problem_;
  const Slices slices_;
  Builder builder_;
  const PeerChannels channels_;
  std::vector<std::vector<Window>> received_;  // by peer and its contribution: raw segments of this rank's slice
  std::optional<Window> for_root_;             // results that this rank does not keep
};

// In a wire type. A slice's owner quantises its own contribution as well, decodes all of them, folds in wide_of(dtype)
// and divides. In an all_reduce it then encodes the result, sends that, and adopts what it decodes to, as all ranks do:
// the same bits everywhere. In a reduce_scatter the result stays with its owner and is not quantised. Slices and
// segments are cut at multiples of kWireBlock from the start of the tensor (of the part, in a reduce_scatter), so which
// rank owns a block, and in which segment it travels, changes nothing. In-place safety: as in OwnerFold, and what is
// sent has been encoded into scratch before.
class EncodedFold {
 public:
  explicit EncodedFold(const Problem& problem)
      : problem_(problem),
        me_(problem.rank),
        slices_(whole_blocks(problem)),
        builder_("direct", problem),
        channels_(builder_, problem) {}

  Plan build() {
    for (int owner : channels_.peers) send_contribution(owner);
    fold_own_slice();
    for (int owner : channels_.peers) receive_result(owner);
    return builder_.finish();
  }

 private:
  bool shares_result() const { return problem_.what == Collective::kAllReduce; }
  static Slices whole_blocks(const Problem& problem) {
    const std::vector<Extent> slices = slices_of(problem, kWireBlock);
    return {slices, align_up(segment_elements(problem, longest(slices)), kWireBlock)};
  }
  Ref contribution(int owner, int64_t s) const {
    return builder_.input(shares_result() ? 0 : owner, slices_.segment(owner, s));
  }

  // Scratch for `count` elements, encoded and as partial sums.
  int64_t reserve_encoded(int64_t count) { return builder_.reserve_scratch(encoded_bytes(problem_.wire, count)); }
  int64_t reserve_wide(int64_t count) { return builder_.reserve_scratch(count * size_of(wide_of(problem_.dtype))); }
  static Ref encoded(int64_t at, int64_t count) { return Builder::scratch(at, Form::kEncoded, count); }
  static Ref wide(int64_t at, int64_t count) { return Builder::scratch(at, Form::kWide, count); }

  // One slot is enough: the channel encodes the next segment once the link has accepted the previous one.
  void send_contribution(int owner) {
    if (slices_.segments(owner) == 0) return;
    const int channel = channels_.send[owner];
    const int64_t slot = reserve_encoded(slices_.longest_segment(owner));
    for (int64_t s = 0; s < slices_.segments(owner); ++s) {
      const Ref bytes = encoded(slot, slices_.segment(owner, s).count());
      builder_.encode(channel, contribution(owner, s), bytes);
      builder_.send(channel, owner, kRawRound, bytes);
    }
  }

  void receive_result(int owner) {
    if (!shares_result() || slices_.segments(owner) == 0) return;
    const int channel = channels_.recv[owner];
    const int64_t slot = reserve_encoded(slices_.longest_segment(owner));
    for (int64_t s = 0; s < slices_.segments(owner); ++s) {
      const Ref bytes = encoded(slot, slices_.segment(owner, s).count());
      builder_.recv(channel, owner, kResultRound, bytes);
      builder_.decode(channel, bytes, builder_.output(0, slices_.segment(owner, s)));
    }
  }

  void fold_own_slice() {
    const int slots = static_cast<int>(std::min<int64_t>(kWindow, slices_.segments(me_)));
    if (slots == 0) return;
    const int64_t most = slices_.longest_segment(me_);
    own_ = reserve_encoded(most);
    for (int rank = 0; rank < problem_.world; ++rank) {
      received_.emplace_back(builder_, rank == me_ ? 0 : slots, encoded_bytes(problem_.wire, most));
      sums_.push_back(reserve_wide(most));
    }
    // Results are queued behind all contributions on each link, so all of them may have to be buffered.
    if (shares_result()) results_ = reserve_encoded(slices_.by_owner[me_].count());
    for (int64_t s = 0; s < slices_.segments(me_); ++s) {
      const Ref sum = fold(s);
      if (shares_result()) {
        share(s, sum);
      } else {
        builder_.fold(channels_.own, {sum}, {builder_.output(0, slices_.segment(me_, s))}, true);
      }
    }
  }

  // The sum of all ranks' decoded segments; divided only if it will be encoded.
  Ref fold(int64_t s) {
    const int64_t count = slices_.segment(me_, s).count();
    std::vector<Ref> srcs;
    for (int rank = 0; rank < problem_.world; ++rank) srcs.push_back(wide(sums_[rank], count));
    builder_.encode(channels_.own, contribution(me_, s), encoded(own_, count));
    builder_.decode(channels_.own, encoded(own_, count), srcs[me_]);
    for (int peer : channels_.peers) {
      const Window::Slot slot = received_[peer].take();
      const Ref bytes = encoded(slot.offset, count);
      const After here = builder_.recv(channels_.recv[peer], peer, kRawRound, bytes, slot.free);
      received_[peer].release_after(slot.index, builder_.decode(channels_.own, bytes, srcs[peer], {here}));
    }
    builder_.fold(channels_.own, srcs, {srcs[0]}, shares_result());
    return srcs[0];
  }

  void share(int64_t s, const Ref& sum) {
    const Extent mine = slices_.segment(me_, s);
    const Ref result = encoded(results_ + encoded_bytes(problem_.wire, s * slices_.segment_elements), mine.count());
    const After ready = builder_.encode(channels_.own, sum, result);
    for (int peer : channels_.peers) builder_.send(channels_.send[peer], peer, kResultRound, result, {ready});
    builder_.decode(channels_.own, result, builder_.output(0, mine));
  }

  const Problem& problem_;
  const int me_;
  const Slices slices_;
  Builder builder_;
  const PeerChannels channels_;
  std::vector<Window> received_;   // by peer: encoded segments of this rank's slice
  std::vector<int64_t> sums_;      // scratch, by rank: that rank's decoded segment
  int64_t own_ = 0, results_ = 0;  // scratch: this rank's encoded segment, all encoded results
};

// The collectives that only move tensors. A transfer is one step whatever its size: links stream it piece by piece.
class DirectMoves {
 public:
  explicit DirectMoves(const Problem& problem)
      : problem_(problem), rank_(problem.rank), builder_("direct", problem), channels_(builder_, problem) {}

  Plan build() {
    switch (problem_.what) {
      case Collective::kBroadcast:
        broadcast();
        break;
      case Collective::kAllGather:
        all_gather();
        break;
      case Collective::kGather:
        gather();
        break;
      case Collective::kScatter:
        scatter();
        break;
      case Collective::kAllToAll:
        all_to_all();
        break;
      default:
        break;  // barrier: executors exchange headers with every peer first, and that is the barrier
    }
    return builder_.finish();
  }

 private:
  bool is_root() const { return rank_ == problem_.root; }

  void send(int peer, int tensor, int64_t count) {
    if (count > 0) builder_.send(channels_.send[peer], peer, kRawRound, builder_.input(tensor, {0, count}));
  }
  void receive(int peer, int tensor, int64_t count) {
    if (count > 0) builder_.recv(channels_.recv[peer], peer, kRawRound, builder_.output(tensor, {0, count}));
  }
  void keep(int from, int to, int64_t count) {
    if (count > 0) builder_.copy(channels_.own, builder_.input(from, {0, count}), builder_.output(to, {0, count}));
  }

  void broadcast() {
    if (!is_root()) return receive(problem_.root, 0, problem_.count);
    for (int peer : channels_.peers) send(peer, 0, problem_.count);
  }

  void all_gather() {
    keep(0, rank_, problem_.part(rank_));
    for (int peer : channels_.peers) {
      send(peer, 0, problem_.part(rank_));
      receive(peer, peer, problem_.part(peer));
    }
  }

  void gather() {
    if (!is_root()) return send(problem_.root, 0, problem_.part(rank_));
    keep(0, rank_, problem_.part(rank_));
    for (int peer : channels_.peers) receive(peer, peer, problem_.part(peer));
  }

  void scatter() {
    if (!is_root()) return receive(problem_.root, 0, problem_.part(rank_));
    keep(rank_, 0, problem_.part(rank_));
    for (int peer : channels_.peers) send(peer, peer, problem_.part(peer));
  }

  void all_to_all() {
    keep(rank_, rank_, problem_.sent_to(rank_));
    for (int peer : channels_.peers) {
      const Ref src = builder_.input(peer, {0, problem_.sent_to(peer)});
      const Ref dst = builder_.output(peer, {0, problem_.received_from(peer)});
      builder_.send_announced(channels_.send[peer], peer, kRawRound, src);
      builder_.recv_announced(channels_.recv[peer], peer, kRawRound, dst);
    }
  }

  const Problem& problem_;
  const int rank_;
  Builder builder_;
  const PeerChannels channels_;
};

Plan fold_at(int server, const Problem& problem) {
  std::vector<Extent> slices(problem.world);
  slices[server] = {0, problem.count};
  return fold_at_owners("server", problem, slices);
}

}  // namespace

Plan fold_at_owners(const std::string& algorithm, const Problem& problem, const std::vector<Extent>& slices) {
  return OwnerFold(algorithm, problem, slices).build();
}

Plan direct(const Problem& problem) {
  if (problem.travels_encoded()) return EncodedFold(problem).build();
  if (problem.traits().is(kReduces)) return fold_at_owners("direct", problem, slices_of(problem, problem.unit()));
  return DirectMoves(problem).build();
}

Plan server(const Problem& problem) {
  switch (problem.what) {
    case Collective::kAllReduce:
      return fold_at(0, problem);
    case Collective::kReduce:
      return fold_at(problem.root, problem);
    case Collective::kBroadcast: {
      Plan plan = direct(problem);  // direct already has the root send to all ranks
      plan.algorithm = "server";
      return plan;
    }
    default:
      return direct(problem);
  }
}

}  // namespace ringdp::plan
