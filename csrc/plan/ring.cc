#include "plan/ring.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "plan/builder.h"
#include "plan/direct.h"
#include "plan/pipeline.h"

namespace ringdp::plan {
namespace {

constexpr int kUp = 1, kDown = -1;  // to the next rank, to the previous

// The neighbours of one direction, and the channels to and from them.
struct RingWay {
  RingWay(Builder& builder, const Problem& problem, int direction = kUp)
      : next(wrap(problem.rank + direction, problem.world)),
        previous(wrap(problem.rank - direction, problem.world)),
        send(builder.add_send_channel(next)),
        recv(builder.add_recv_channel(previous)) {}

  int next, previous;  // ranks
  int send, recv;      // channels
};

// The last pass of a ring, in which every rank forwards what it received.
struct RingGather {
  explicit RingGather(const RingWay& links) : way(links) {}

  const RingWay& way;
  int first = 0;        // chunk that this rank holds at the start
  int direction = kUp;  // the next rank holds chunk first + direction
  int base_round = 0;
  int64_t segments = 0;                        // per chunk
  bool sends_nothing = false;                  // empty segments are sent too, as messages without payload
  std::function<Ref(int chunk, int64_t)> own;  // where the held chunk is sent from
  std::function<Ref(int chunk, int64_t)> ref;  // where the other chunks are received and forwarded from
  std::vector<std::vector<After>> held;        // by segment: what the next send of it waits for
};

// N-1 rounds: each rank sends the chunk it holds, then the one it received last. Both ends skip the same segments.
void gather_round_the_ring(Builder& builder, int world, std::vector<RingGather> ways) {
  for (RingGather& pass : ways) pass.held.resize(pass.segments);
  for (int s = 0; s < world - 1; ++s) {
    for (RingGather& pass : ways) {
      const int round = pass.base_round + s;
      const int sent = wrap(pass.first - pass.direction * s, world);
      const int received = wrap(pass.first - pass.direction * (s + 1), world);
      for (int64_t k = 0; k < pass.segments; ++k) {
        const Ref src = s == 0 ? pass.own(sent, k) : pass.ref(sent, k);
        if (src.count > 0 || pass.sends_nothing) builder.send(pass.way.send, pass.way.next, round, src, pass.held[k]);
        const Ref dst = pass.ref(received, k);
        if (dst.count == 0 && !pass.sends_nothing) continue;
        pass.held[k] = {builder.recv(pass.way.recv, pass.way.previous, round, dst)};
      }
    }
  }
}

// Waits until the neighbours have signalled their last access to this rank's memory; with Order::kRank rank 0 has none.
void part_from_neighbours(Builder& builder, int channel, const Problem& problem, bool first_has_stage) {
  constexpr int kLast = 1;  // the round of the flags
  std::vector<int> neighbours = {wrap(problem.rank + 1, problem.world)};
  if (problem.world > 2) neighbours.push_back(wrap(problem.rank - 1, problem.world));
  for (const int peer : neighbours) {
    if (problem.rank != 0 || first_has_stage) builder.post(channel, peer, kLast);
  }
  for (const int peer : neighbours) {
    if (peer != 0 || first_has_stage) builder.await(channel, peer, kLast);
  }
}

Plan all_gather(const Problem& problem) {
  Builder builder("ring", problem);
  const RingWay way(builder, problem);
  const int own = builder.add_channel("fold");
  const int64_t largest = problem.largest_part();
  const int64_t elements = segment_elements(problem, largest, problem.world);
  const Extent mine = {0, problem.part(problem.rank)};
  if (mine.count() > 0) builder.copy(own, builder.input(0, mine), builder.output(problem.rank, mine));
  RingGather gather(way);
  gather.first = problem.rank;
  gather.segments = ceil_div(largest, elements);
  gather.own = [&](int, int64_t k) { return builder.input(0, segment(mine, elements, k)); };
  gather.ref = [&](int chunk, int64_t k) {
    return builder.output(chunk, segment({0, problem.part(chunk)}, elements, k));
  };
  gather_round_the_ring(builder, problem.world, {gather});
  return builder.finish();
}

// A chain from the root: segment m takes hop h in round m + h.
Plan broadcast(const Problem& problem) {
  Builder builder("ring", problem);
  const RingWay way(builder, problem);
  builder.add_channel("fold");
  const Extent whole = {0, problem.count};
  const int64_t elements = segment_elements(problem, problem.count);
  const int hops = wrap(problem.rank - problem.root, problem.world);  // from the root to here
  for (int64_t m = 0; m < ceil_div(problem.count, elements); ++m) {
    const int round = static_cast<int>(m) + hops;
    const Extent piece = segment(whole, elements, m);
    Ref held = builder.input(0, piece);
    std::vector<After> after;
    if (hops > 0) {
      held = builder.output(0, piece);
      after = {builder.recv(way.recv, way.previous, round - 1, held)};
    }
    if (way.next != problem.root) builder.send(way.send, way.next, round, held, after);
  }
  return builder.finish();
}

constexpr int kNoSlot = -1;
constexpr int kAllRanks = -1;

// Every step waits only for steps of an earlier round, so the pipeline cannot deadlock however little links buffer.
// In-place safety: the result of segment m derives from my prefix of m, so it arrives only after I have read kInput.
class RankRing {
 public:
  explicit RankRing(const Problem& problem)
      : problem_(problem),
        builder_("ring", problem),
        prefix_way_(builder_, problem),
        result_way_(problem.in_kernels() ? RingWay(builder_, problem, kDown) : prefix_way_),
        channel_(builder_.add_channel("fold")),
        rank_(problem.rank),
        last_(problem.world - 1),
        pieces_(cut(problem)),
        segments_(static_cast<int64_t>(pieces_.size())),
        prefixes_(segments_),
        results_(segments_) {
    int64_t largest = 0;
    for (const Piece& piece : pieces_) largest = std::max(largest, piece.extent.count());
    const int64_t wide = largest * size_of(wide_of(problem.dtype));
    const int slots = problem.in_kernels() ? static_cast<int>(segments_) : kWindow;
    if (rank_ > 0) received_.emplace(builder_, slots, wide);
    if (problem.what != Collective::kAllReduce) passing_.emplace(builder_, slots, largest * size_of(problem.dtype));
    if (rank_ > 0 && rank_ < last_) partial_.emplace(builder_, slots, wide);
  }

  // Both ends of a link list its messages by round, prefix before result, so they agree on their order.
  Plan build() {
    const int64_t rounds = segments_ == 0 ? 0 : 2 * last_ + segments_ - 1;
    const int hop = hop_of(rank_);
    for (int64_t t = 0; t < rounds; ++t) {
      if (rank_ < last_) send_prefix(t - rank_, t);
      send_result(t - last_ - hop, t);
      if (rank_ > 0) receive_prefix(t - (rank_ - 1), t);
      receive_result(t - last_ - hop + 1, t);
    }
    const bool scatters = problem_.what == Collective::kReduceScatter;
    if (problem_.in_kernels() && scatters) part_from_neighbours(builder_, channel_, problem_, false);
    return builder_.finish();
  }

 private:
  // A segment of input `tensor`; `owner` keeps the result.
  struct Piece {
    int tensor = 0;
    int owner = kAllRanks;
    Extent extent;
  };
  // Where a segment lies, complete after `after`: in `slot` of a window, or in user memory (kNoSlot).
  struct Held {
    Ref ref;
    std::vector<After> after;
    int slot = kNoSlot;
  };

  static std::vector<Piece> cut(const Problem& problem) {
    const bool scatter = problem.what == Collective::kReduceScatter;
    const int tensors = scatter ? problem.world : 1;
    const int64_t largest = scatter ? problem.largest_part() : problem.count;
    const int64_t elements = segment_elements(problem, largest, tensors);
    std::vector<Piece> pieces;
    for (int tensor = 0; tensor < tensors; ++tensor) {
      const int owner = scatter ? tensor : problem.what == Collective::kReduce ? problem.root : kAllRanks;
      const Extent whole = {0, scatter ? problem.part(tensor) : problem.count};
      for (int64_t k = 0; k < ceil_div(whole.count(), elements); ++k) {
        pieces.push_back({tensor, owner, segment(whole, elements, k)});
      }
    }
    return pieces;
  }

  bool exists(int64_t m) const { return m >= 0 && m < segments_; }
  int64_t count(int64_t m) const { return pieces_[m].extent.count(); }
  Ref own(int64_t m) const { return builder_.input(pieces_[m].tensor, pieces_[m].extent); }

  // Hops of a result from the last rank to `rank`: last -> 0 -> 1 ..., or in kernels last -> last - 1 ...
  int hop_of(int rank) const { return problem_.in_kernels() ? last_ - rank : wrap(rank + 1, problem_.world); }
  // The hop at which a result stops.
  int end_of(int64_t m) const { return pieces_[m].owner == kAllRanks ? last_ : hop_of(pieces_[m].owner); }

  void send_prefix(int64_t m, int64_t round) {
    if (!exists(m)) return;
    // Rank 0 has nothing to fold, so its values travel in the tensor's own type.
    const Held held = rank_ == 0 ? Held{own(m), {}} : prefixes_[m];
    const After sent = builder_.send(prefix_way_.send, prefix_way_.next, static_cast<int>(round), held.ref, held.after);
    if (held.slot != kNoSlot) partial_->release_after(held.slot, sent);
  }

  void receive_prefix(int64_t m, int64_t round) {
    if (!exists(m)) return;
    const Window::Slot in = received_->take();
    const Ref prefix = Builder::scratch(in.offset, rank_ == 1 ? Form::kRaw : Form::kWide, count(m));
    std::vector<After> after = {
        builder_.recv(prefix_way_.recv, prefix_way_.previous, static_cast<int>(round), prefix, in.free)};
    Held& held = rank_ == last_ ? results_[m] : prefixes_[m];
    held = rank_ == last_ ? place_for_result(m) : place_for_partial(m);
    after.insert(after.end(), held.after.begin(), held.after.end());
    const After folded = builder_.fold(channel_, {prefix, own(m)}, {held.ref}, rank_ == last_, after);
    held.after = {folded};
    received_->release_after(in.index, folded);
  }

  void send_result(int64_t m, int64_t round) {
    if (!exists(m) || hop_of(rank_) >= end_of(m)) return;
    const Held& held = results_[m];
    const After sent = builder_.send(result_way_.send, result_way_.next, static_cast<int>(round), held.ref, held.after);
    if (held.slot != kNoSlot) passing_->release_after(held.slot, sent);
  }

  void receive_result(int64_t m, int64_t round) {
    if (!exists(m) || rank_ == last_ || hop_of(rank_) > end_of(m)) return;
    results_[m] = place_for_result(m);
    results_[m].after = {builder_.recv(result_way_.recv, result_way_.previous, static_cast<int>(round), results_[m].ref,
                                       results_[m].after)};
  }

  // Where a segment is written; its `after` are the steps that must be done before.
  Held place_for_result(int64_t m) {
    const int owner = pieces_[m].owner;
    if (owner == kAllRanks || owner == rank_) return {builder_.output(0, pieces_[m].extent), {}};
    const Window::Slot slot = passing_->take();
    return {Builder::scratch(slot.offset, Form::kRaw, count(m)), slot.free, slot.index};
  }
  Held place_for_partial(int64_t m) {
    const Window::Slot slot = partial_->take();
    return {Builder::scratch(slot.offset, Form::kWide, count(m)), slot.free, slot.index};
  }

  const Problem& problem_;
  Builder builder_;
  const RingWay prefix_way_, result_way_;
  const int channel_, rank_, last_;
  const std::vector<Piece> pieces_;  // in the order in which they start
  const int64_t segments_;
  std::vector<Held> prefixes_, results_;                // by segment
  std::optional<Window> received_, partial_, passing_;  // prefixes in, prefixes out, results on their way to others
};

// Chunks longer than the window go round in groups of kWindow segments: partial sums wait for their next round in
// scratch, so a whole chunk must never be in flight. In-place safety: a chunk's result is written on a rank only after
// its own input for that chunk was folded or sent.
//
// Kernels have a segment for each half of a chunk: halves of the elements, not of the blocks, so a step is the same for
// any number of blocks. With two ranks both neighbours are the same rank, and there is one direction.
class RotatedRing {
 public:
  explicit RotatedRing(const Problem& problem)
      : problem_(problem),
        builder_("ring/rotated", problem),
        world_(problem.world),
        scatter_(problem.what == Collective::kReduceScatter),
        parts_(problem.in_kernels() && world_ > 2 ? 2 : 1),
        largest_(largest_part()),
        elements_(problem.in_kernels() ? std::max<int64_t>(largest_, 1)
                                       : segment_elements(problem, largest_, 2 * world_)),
        segments_(ceil_div(largest_, elements_)),
        // all_reduce: chunk c starts at rank c. reduce_scatter: one later, so that it ends where it belongs.
        shift_(scatter_ ? 1 : 0) {
    for (int part = 0; part < parts_; ++part) ways_.emplace_back(*this, part == 0 ? kUp : kDown);
    channel_ = builder_.add_channel("fold");
    for (Way& way : ways_) way.received.emplace(builder_, problem.in_kernels() ? world_ - 1 : kWindow, slot_bytes());
    for (Way& way : ways_) way.partial.emplace(builder_, 2 * kWindow, slot_bytes());
  }

  Plan build() {
    for (int64_t group = 0; group < segments_; group += kWindow) {
      for (int s = 0; s < world_ - 1; ++s) {
        for (int64_t k = group; k < std::min(group + kWindow, segments_); ++k) {
          for (Way& way : ways_) send(way, s, k);
          for (Way& way : ways_) receive(way, s, k);
        }
      }
    }
    if (!scatter_) gather();
    if (scatter_ && problem_.in_kernels()) part_from_neighbours(builder_, channel_, problem_, true);
    return builder_.finish();
  }

 private:
  struct Held {
    Ref ref;
    After after;
    int slot = 0;
  };
  struct Way {
    Way(RotatedRing& ring, int direction)
        : direction(direction), links(ring.builder_, ring.problem_, direction), held(ring.segments_) {}

    int direction;
    RingWay links;
    std::optional<Window> received, partial;
    std::vector<Held> held;  // by segment: what this rank sends in the next round
  };

  int64_t slot_bytes() const { return std::min(elements_, largest_) * size_of(wide_of(problem_.dtype)); }

  // Not in kernels: none of them only converts to the wide type.
  bool starts_wide() const { return !problem_.on_device && wide_of(problem_.dtype) != problem_.dtype; }

  // The half of chunk `c` that goes in `direction`, relative to its tensor; the whole chunk if there is one direction.
  Extent chunk(int direction, int c) const {
    const Extent whole =
        scatter_ ? Extent{0, problem_.part(c)} : balanced_part(problem_.count, world_, c, problem_.unit());
    const Extent part = balanced_part(whole.count(), parts_, direction == kUp ? 0 : 1, problem_.unit());
    return {whole.begin + part.begin, whole.begin + part.end};
  }
  int64_t largest_part() const {
    int64_t most = 0;
    for (int c = 0; c < world_; ++c) most = std::max(most, chunk(kUp, c).count());
    return most;
  }
  Ref own(const Way& way, int c, int64_t k) const {
    return builder_.input(scatter_ ? c : 0, segment(chunk(way.direction, c), elements_, k));
  }
  Ref result(const Way& way, int c, int64_t k) const {
    return builder_.output(0, segment(chunk(way.direction, c), elements_, k));
  }
  // The chunk that this rank sends in round `s`.
  int sent(const Way& way, int s) const { return wrap(problem_.rank - way.direction * (shift_ + s), world_); }
  // In kernels the number of messages does not depend on the size.
  bool is_left_out(const Ref& ref) const { return ref.count == 0 && !problem_.in_kernels(); }

  void send(Way& way, int s, int64_t k) {
    const Ref mine = own(way, sent(way, s), k);
    if (is_left_out(mine)) return;
    if (s == 0 && !starts_wide()) {
      builder_.send(way.links.send, way.links.next, s, mine);
      return;
    }
    // Widened first, so that every hop of a chunk has the same bytes.
    if (s == 0) fold_partial(way, {mine}, {}, k);
    const Held& held = way.held[k];
    way.partial->release_after(held.slot, builder_.send(way.links.send, way.links.next, s, held.ref, {held.after}));
  }

  void receive(Way& way, int s, int64_t k) {
    const int c = sent(way, s + 1);
    const Ref mine = own(way, c, k);
    if (is_left_out(mine)) return;
    const Window::Slot in = way.received->take();
    const Ref prefix = Builder::scratch(in.offset, s == 0 && !starts_wide() ? Form::kRaw : Form::kWide, mine.count);
    const After arrived = builder_.recv(way.links.recv, way.links.previous, s, prefix, in.free);
    Held& held = way.held[k];
    if (s < world_ - 2) {
      fold_partial(way, {prefix, mine}, {arrived}, k);
    } else {
      held = {result(way, c, k), {}};
      held.after = builder_.fold(channel_, {prefix, mine}, {held.ref}, true, {arrived});
    }
    way.received->release_after(in.index, held.after);
  }

  // Folds into the slot from which segment `k` is sent next.
  void fold_partial(Way& way, const std::vector<Ref>& srcs, std::vector<After> after, int64_t k) {
    const Window::Slot slot = way.partial->take();
    after.insert(after.end(), slot.free.begin(), slot.free.end());
    const Ref sum = Builder::scratch(slot.offset, Form::kWide, srcs[0].count);
    way.held[k] = {sum, builder_.fold(channel_, srcs, {sum}, false, after), slot.index};
  }

  void gather() {
    std::vector<RingGather> passes;
    for (const Way& way : ways_) {
      RingGather pass(way.links);
      pass.first = problem_.rank + way.direction;  // the chunk whose sum this rank has completed
      pass.direction = way.direction;
      pass.base_round = world_ - 1;
      pass.segments = segments_;
      pass.sends_nothing = problem_.in_kernels();
      pass.own = pass.ref = [this, &way](int c, int64_t k) { return result(way, wrap(c, world_), k); };
      for (const Held& held : way.held) pass.held.push_back({held.after});
      passes.push_back(std::move(pass));
    }
    gather_round_the_ring(builder_, world_, std::move(passes));
  }

  const Problem& problem_;
  Builder builder_;
  const int world_;
  const bool scatter_;
  const int parts_;                              // per chunk: one for each direction
  const int64_t largest_, elements_, segments_;  // elements of the largest part and of a segment; segments per part
  const int shift_;
  int channel_ = 0;
  std::vector<Way> ways_;
};

}  // namespace

Plan ring(const Problem& problem, Order order) {
  if (problem.traits().is(kDirectOnly)) return direct(problem);
  switch (problem.what) {
    case Collective::kAllGather:
      return all_gather(problem);
    case Collective::kBroadcast:
      return broadcast(problem);
    case Collective::kBarrier:
      return Builder("ring", problem).finish();  // the executor's exchange of headers is the barrier
    case Collective::kReduce:
      return RankRing(problem).build();
    default:
      break;
  }
  return order == Order::kRotated ? RotatedRing(problem).build() : RankRing(problem).build();
}

}  // namespace ringdp::plan
