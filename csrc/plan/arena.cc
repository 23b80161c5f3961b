#include "plan/arena.h"

#include <algorithm>
#include <utility>

#include "plan/direct.h"
#include "plan/one_pass.h"
#include "plan/pipeline.h"

namespace ringdp::plan {
namespace {

constexpr int64_t kCacheLine = 64;
constexpr int64_t kMostCopies = 16 << 10;  // into slots, of one rank; more steps take long to plan

// Collectives that only move tensors. One barrier per stage; the root's own part never goes through a slot.
class ArenaMove {
 public:
  ArenaMove(const Problem& problem, const Builder& builder, ArenaChannel& channel)
      : problem_(problem), rank_(problem.rank), builder_(builder), channel_(channel) {}

  void build() {
    switch (problem_.what) {
      case Collective::kAllGather:
        return all_gather();
      case Collective::kBroadcast:
        return broadcast();
      case Collective::kGather:
        return gather();
      case Collective::kScatter:
        return scatter();
      default:
        return;  // barrier: every plan on the arena has one
    }
  }

 private:
  bool is_root() const { return rank_ == problem_.root; }
  Extent stage_of(int owner, int k, int64_t elements) const { return segment({0, problem_.part(owner)}, elements, k); }

  void all_gather() {
    const int64_t elements = channel_.slot_elements();
    for (int k = 0; k < ceil_div(problem_.largest_part(), elements); ++k) {
      const Extent mine = stage_of(rank_, k, elements);
      channel_.copy(builder_.input(0, mine), channel_.slot(rank_, k, mine.count()));
      channel_.arrive();
      channel_.copy(builder_.input(0, mine), builder_.output(rank_, mine));  // instead of waiting idly
      channel_.wait();
      copy_out_others(k, elements);
    }
  }

  void copy_out_others(int k, int64_t elements) {
    for (int i = 1; i < problem_.world; ++i) {
      const int q = (rank_ + i) % problem_.world;  // not all ranks at the same slot at once
      const Extent theirs = stage_of(q, k, elements);
      channel_.copy(channel_.slot(q, k, theirs.count()), builder_.output(q, theirs));
    }
  }

  void broadcast() {
    const int64_t elements = channel_.slot_elements();
    for (int k = 0; k < ceil_div(problem_.count, elements); ++k) {
      const Extent stage = segment({0, problem_.count}, elements, k);
      const Ref shown = channel_.slot(problem_.root, k, stage.count());
      if (is_root()) channel_.copy(builder_.input(0, stage), shown);
      channel_.barrier();
      if (!is_root()) channel_.copy(shown, builder_.output(0, stage));
    }
  }

  void gather() {
    const int64_t elements = channel_.slot_elements();
    for (int k = 0; k < ceil_div(problem_.largest_part(), elements); ++k) {
      const Extent mine = stage_of(rank_, k, elements);
      const Ref own = builder_.input(0, mine);
      channel_.copy(own, is_root() ? builder_.output(rank_, mine) : channel_.slot(rank_, k, mine.count()));
      channel_.barrier();
      if (is_root()) copy_out_others(k, elements);
    }
  }

  void scatter() {
    const int64_t elements = channel_.piece_elements();
    for (int k = 0; k < ceil_div(problem_.largest_part(), elements); ++k) {
      for (int q = 0; is_root() && q < problem_.world; ++q) {
        const Extent theirs = stage_of(q, k, elements);
        const Ref part = builder_.input(q, theirs);
        channel_.copy(part, q == rank_ ? builder_.output(0, theirs) : channel_.piece(rank_, k, q, theirs.count()));
      }
      channel_.barrier();
      if (is_root()) continue;
      const Extent mine = stage_of(rank_, k, elements);
      channel_.copy(channel_.piece(problem_.root, k, rank_, mine.count()), builder_.output(0, mine));
    }
  }

  const Problem& problem_;
  const int rank_;
  const Builder& builder_;
  ArenaChannel& channel_;
};

// Sums.
class ArenaReduce {
 public:
  ArenaReduce(const Problem& problem, const Builder& builder, ArenaChannel& channel)
      : problem_(problem), rank_(problem.rank), builder_(builder), channel_(channel) {}

  void build() {
    if (problem_.what == Collective::kReduceScatter) return scatter();
    if (is_one_shot(problem_)) return one_shot();
    stages();
  }

 private:
  bool gets_result() const { return problem_.what == Collective::kAllReduce || rank_ == problem_.root; }
  bool others_read_mine() const { return problem_.what == Collective::kAllReduce || rank_ != problem_.root; }

  // Kernels have one slot, and read their own input from it too: the next plan waits for the slowest reader.
  void one_shot() {
    const Extent whole = {0, problem_.count};
    const Ref input = builder_.input(0, whole), copied = channel_.slot(rank_, 0, whole.count());
    if (others_read_mine()) channel_.copy(input, copied);
    channel_.barrier();
    const Ref& own = problem_.on_device ? copied : input;
    if (gets_result()) channel_.fold(channel_.in_rank_order(own, 0, 0), {builder_.output(0, whole)});
    if (problem_.on_device) channel_.barrier();
  }

  // One barrier per stage and one more. copy_in(k+1) can run while others still copy_out(k-1) from the same slot: they
  // read only my own piece, which copy_in does not write and which lies at the same place in every stage. fold(k+1),
  // which does write it, comes after a barrier at which all arrived after copy_out(k-1).
  void stages() {
    const int64_t stage_elements = problem_.world * channel_.piece_elements();
    const int stages = static_cast<int>(ceil_div(problem_.count, stage_elements));
    const auto stage = [&](int k) { return segment({0, problem_.count}, stage_elements, k); };
    copy_in(stage(0), 0);
    channel_.barrier();
    for (int k = 0; k < stages; ++k) {
      fold_own_piece(stage(k), k);
      if (k + 1 < stages) copy_in(stage(k + 1), k + 1);
      channel_.barrier();
      if (gets_result()) copy_out(stage(k), k);
    }
  }

  Extent piece(Extent stage, int owner) const {
    const Extent part = balanced_part(stage.count(), problem_.world, owner);
    return {stage.begin + part.begin, stage.begin + part.end};
  }

  // The piece for rank `owner` of a rank's `root`th contribution. No rank copies to the first piece that is its own.
  int place(int owner, int root) const { return root * problem_.world + owner; }
  int contributed() const { return problem_.contributed(rank_); }

  // Sources of a fold of this rank's pieces: own(root) at its position.
  template <class Own>
  std::vector<Ref> in_rank_order(Own own, int k, int64_t count) const {
    std::vector<Ref> refs;
    for (int q = 0; q < problem_.world; ++q) {
      for (int root = 0; root < problem_.contributed(q); ++root) {
        refs.push_back(q == rank_ ? own(root) : channel_.piece(q, k, place(rank_, root), count));
      }
    }
    return refs;
  }

  void copy_in(Extent stage, int k) {
    for (int q = 0; q < problem_.world; ++q) {
      const Extent theirs = piece(stage, q);
      if (q == rank_ || theirs.count() == 0) continue;
      for (int root = 0; root < contributed(); ++root) {
        channel_.copy(builder_.input(root, theirs), channel_.piece(rank_, k, place(q, root), theirs.count()));
      }
    }
  }

  void fold_own_piece(Extent stage, int k) {
    const Extent mine = piece(stage, rank_);
    if (mine.count() == 0) return;
    std::vector<Ref> results;
    if (gets_result()) results.push_back(builder_.output(0, mine));
    if (others_read_mine()) results.push_back(channel_.piece(rank_, k, rank_, mine.count()));
    const auto own = [&](int root) { return builder_.input(root, mine); };
    channel_.fold(in_rank_order(own, k, mine.count()), results);
  }

  void copy_out(Extent stage, int k) {
    for (int i = 1; i < problem_.world; ++i) {
      const int q = (rank_ + i) % problem_.world;  // not all ranks at the same slot at once
      const Extent theirs = piece(stage, q);
      if (theirs.count() == 0) continue;
      channel_.copy(channel_.piece(q, k, q, theirs.count()), builder_.output(0, theirs));
    }
  }

  void scatter() {
    const int64_t elements = channel_.piece_elements();
    const auto stage = [&](int owner, int k) { return segment({0, problem_.part(owner)}, elements, k); };
    for (int k = 0; k < ceil_div(problem_.largest_part(), elements); ++k) {
      for (int q = 0; q < problem_.world; ++q) {
        if (q == rank_) continue;
        const Extent theirs = stage(q, k);
        for (int root = 0; root < contributed(); ++root) {
          channel_.copy(builder_.input(place(q, root), theirs),
                        channel_.piece(rank_, k, place(q, root), theirs.count()));
        }
      }
      channel_.barrier();
      const Extent mine = stage(rank_, k);
      if (mine.count() == 0) continue;
      const auto own = [&](int root) { return builder_.input(place(rank_, root), mine); };
      channel_.fold(in_rank_order(own, k, mine.count()), {builder_.output(0, mine)});
    }
  }

  const Problem& problem_;
  const int rank_;
  const Builder& builder_;
  ArenaChannel& channel_;
};

}  // namespace

bool ArenaChannel::suits_roots(const Problem& problem, int owners) {
  if (!problem.roots) return true;
  const int64_t pieces = int64_t{owners} * problem.most_contributed();
  const int64_t piece_bytes = problem.slot_bytes / pieces / kCacheLine * kCacheLine;
  if (piece_bytes == 0) return false;
  return pieces * ceil_div(problem.total_bytes(), owners * piece_bytes) <= kMostCopies;
}

ArenaChannel::ArenaChannel(Builder& builder, const Problem& problem, int member, int members, int pieces)
    : builder_(builder),
      channel_(builder.add_channel("arena")),
      member_(member),
      members_(members),
      element_bytes_(size_of(problem.dtype)),
      slot_bytes_(problem.slot_bytes),
      piece_bytes_(problem.slot_bytes / pieces / kCacheLine * kCacheLine) {
  if (piece_bytes_ >= kCacheLine) return;
  throw Error(ErrorKind::kInvalidArgument, "slot_bytes=" + std::to_string(slot_bytes_) + " is too small for " +
                                               std::to_string(pieces) + " pieces: set it to at least " +
                                               std::to_string(pieces * kCacheLine));
}

void ArenaChannel::arrive() {
  builder_.arrive(channel_);
  has_barrier_ = true;
}

void ArenaChannel::wait() { builder_.wait(channel_); }

void ArenaChannel::barrier() {
  arrive();
  wait();
}

void ArenaChannel::copy(const Ref& src, const Ref& dst, std::vector<After> after) {
  builder_.copy(channel_, src, dst, std::move(after));
}

void ArenaChannel::fold(const std::vector<Ref>& srcs, const std::vector<Ref>& dsts) {
  builder_.fold(channel_, srcs, dsts, true);
}

std::vector<Ref> ArenaChannel::in_rank_order(const Ref& own, int stage, int piece, int64_t begin) const {
  std::vector<Ref> refs;
  for (int q = 0; q < members_; ++q) {
    refs.push_back(q == member_ ? own : this->piece(q, stage, piece, own.count, begin));
  }
  return refs;
}

bool is_one_shot(const Problem& problem) {
  const int64_t bytes = problem.count * size_of(problem.dtype);
  return bytes > 0 && !problem.roots && bytes <= std::min(problem.one_shot_bytes, problem.slot_bytes);
}

Plan arena(const Problem& problem) {
  if (problem.in_heaps) return one_pass(problem);
  if (problem.traits().has_splits() || !ArenaChannel::suits_roots(problem, problem.world)) return direct(problem);
  Builder builder("arena", problem);
  const int pieces = problem.world * problem.most_contributed();
  ArenaChannel channel(builder, problem, problem.rank, problem.world, pieces);
  if (problem.traits().is(kReduces)) {
    ArenaReduce(problem, builder, channel).build();
  } else {
    ArenaMove(problem, builder, channel).build();
  }
  if (!channel.has_barrier()) channel.barrier();
  return builder.finish();
}

Plan push(const Problem& problem) {
  Builder builder("push", problem);
  const int channel = builder.add_channel("arena");
  const Extent whole = {0, problem.count};
  const Ref own = builder.input(0, whole);
  builder.push(channel, own);
  std::vector<Ref> everyones;
  for (int q = 0; q < problem.world; ++q) everyones.push_back(q == problem.rank ? own : builder.pushed(q, whole));
  builder.fold(channel, everyones, {builder.output(0, whole)}, true);
  return builder.finish();
}

}  // namespace ringdp::plan
