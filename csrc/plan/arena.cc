#include "plan/arena.h"

#include <algorithm>

#include "plan/builder.h"
#include "plan/segment.h"

namespace ringdp::plan {
namespace {

constexpr int64_t kCacheLine = 64;

// Why a slot is never overwritten under a reader. Stages k and k+2 share a slot. With one barrier per stage, whoever
// writes stage k+2 has passed the barrier of stage k+1, and everyone arrived there after reading stage k. The staged
// all_reduce needs more, see its loop. The next collective goes on with the other slot, and the same holds across it.
class ArenaPlan {
 public:
  explicit ArenaPlan(const Problem& problem)
      : problem_(problem),
        builder_("arena", problem),
        lane_(builder_.add_lane("arena")),
        size_(size_of(problem.dtype)),
        piece_bytes_(problem.slot_bytes / problem.world / kCacheLine * kCacheLine) {
    if (piece_bytes_ >= kCacheLine) return;
    throw Error(ErrorKind::kInvalidArgument,
                "slot_bytes=" + std::to_string(problem.slot_bytes) + " is too small for " +
                    std::to_string(problem.world) + " ranks: set it to at least " +
                    std::to_string(problem.world * kCacheLine));
  }

  Plan build() {
    switch (problem_.what) {
      case Collective::kAllReduce: is_one_shot(problem_) ? reduce_in_one_shot() : reduce_in_stages(); break;
      case Collective::kReduceScatter: reduce_scatter(); break;
      case Collective::kAllGather: gather(); break;
      case Collective::kBroadcast: broadcast(); break;
      case Collective::kBarrier: break;
    }
    if (!has_barrier_) barrier();
    return builder_.finish();
  }

 private:
  void barrier() {
    builder_.signal(lane_);
    builder_.wait(lane_);
    has_barrier_ = true;
  }

  // Sources of a fold in rank order: `own` at its place, the slots of the others.
  std::vector<Ref> in_rank_order(const Ref& own, int stage, int64_t byte_offset) const {
    std::vector<Ref> refs;
    for (int q = 0; q < problem_.world; ++q) {
      refs.push_back(q == problem_.rank ? own : builder_.slot(q, stage, byte_offset, own.count));
    }
    return refs;
  }

  void reduce_in_one_shot() {
    const Extent whole = {0, problem_.count};
    const Ref own = builder_.input(0, whole);
    builder_.copy(lane_, own, builder_.slot(problem_.rank, 0, 0, whole.count()));
    barrier();
    builder_.fold(lane_, in_rank_order(own, 0, 0), {builder_.output(0, whole)}, true);
  }

  // One barrier per stage and one more. copy_in(k+1) can run while others still copy_out(k-1) from the same slot:
  // they read only my own piece, which copy_in leaves alone and which lies at the same place in every stage.
  // fold(k+1), which does write it, comes after a barrier at which all arrived after copy_out(k-1).
  void reduce_in_stages() {
    const int64_t stage_elements = problem_.world * (piece_bytes_ / size_);
    const int stages = static_cast<int>(ceil_div(problem_.count, stage_elements));
    const auto stage = [&](int k) { return segment({0, problem_.count}, stage_elements, k); };
    copy_in(stage(0), 0);
    barrier();
    for (int k = 0; k < stages; ++k) {
      fold_own_piece(stage(k), k);
      if (k + 1 < stages) copy_in(stage(k + 1), k + 1);
      barrier();
      copy_out(stage(k), k);
    }
  }

  Extent piece(Extent stage, int owner) const {
    const Extent part = balanced_part(stage.count(), problem_.world, owner);
    return {stage.begin + part.begin, stage.begin + part.end};
  }

  void copy_in(Extent stage, int k) {
    for (int q = 0; q < problem_.world; ++q) {
      const Extent theirs = piece(stage, q);
      if (q == problem_.rank || theirs.count() == 0) continue;
      const Ref slot = builder_.slot(problem_.rank, k, q * piece_bytes_, theirs.count());
      builder_.copy(lane_, builder_.input(0, theirs), slot);
    }
  }

  void fold_own_piece(Extent stage, int k) {
    const Extent mine = piece(stage, problem_.rank);
    if (mine.count() == 0) return;
    const int64_t offset = problem_.rank * piece_bytes_;
    const Ref shown = builder_.slot(problem_.rank, k, offset, mine.count());
    builder_.fold(lane_, in_rank_order(builder_.input(0, mine), k, offset), {builder_.output(0, mine), shown}, true);
  }

  void copy_out(Extent stage, int k) {
    for (int i = 1; i < problem_.world; ++i) {
      const int q = (problem_.rank + i) % problem_.world;  // not everyone at the same slot at once
      const Extent theirs = piece(stage, q);
      if (theirs.count() == 0) continue;
      builder_.copy(lane_, builder_.slot(q, k, q * piece_bytes_, theirs.count()), builder_.output(0, theirs));
    }
  }

  void reduce_scatter() {
    const int64_t elements = piece_bytes_ / size_;
    for (int k = 0; k < ceil_div(problem_.count, elements); ++k) {
      const Extent stage = segment({0, problem_.count}, elements, k);
      for (int q = 0; q < problem_.world; ++q) {
        if (q == problem_.rank) continue;
        const Ref slot = builder_.slot(problem_.rank, k, q * piece_bytes_, stage.count());
        builder_.copy(lane_, builder_.input(q, stage), slot);
      }
      barrier();
      const Ref own = builder_.input(problem_.rank, stage);
      builder_.fold(lane_, in_rank_order(own, k, problem_.rank * piece_bytes_), {builder_.output(0, stage)}, true);
    }
  }

  void gather() {
    const int64_t elements = problem_.slot_bytes / size_;
    for (int k = 0; k < ceil_div(problem_.count, elements); ++k) {
      const Extent stage = segment({0, problem_.count}, elements, k);
      const Ref own = builder_.input(0, stage);
      builder_.copy(lane_, own, builder_.slot(problem_.rank, k, 0, stage.count()));
      builder_.signal(lane_);
      builder_.copy(lane_, own, builder_.output(problem_.rank, stage));  // instead of waiting idly
      builder_.wait(lane_);
      has_barrier_ = true;
      for (int i = 1; i < problem_.world; ++i) {
        const int q = (problem_.rank + i) % problem_.world;
        builder_.copy(lane_, builder_.slot(q, k, 0, stage.count()), builder_.output(q, stage));
      }
    }
  }

  void broadcast() {
    const int64_t elements = problem_.slot_bytes / size_;
    for (int k = 0; k < ceil_div(problem_.count, elements); ++k) {
      const Extent stage = segment({0, problem_.count}, elements, k);
      const Ref shown = builder_.slot(problem_.root, k, 0, stage.count());
      if (problem_.rank == problem_.root) builder_.copy(lane_, builder_.input(0, stage), shown);
      barrier();
      if (problem_.rank != problem_.root) builder_.copy(lane_, shown, builder_.output(0, stage));
    }
  }

  const Problem& problem_;
  Builder builder_;
  const int lane_;
  const int64_t size_;         // bytes of one element
  const int64_t piece_bytes_;  // of a slot, for each rank
  bool has_barrier_ = false;
};

}  // namespace

bool is_one_shot(const Problem& problem) {
  const int64_t bytes = problem.count * size_of(problem.dtype);
  const int64_t limit = problem.world <= 2 ? kOneShotBytesOfTwo : kOneShotBytes;
  return bytes > 0 && bytes <= std::min(limit, problem.slot_bytes);
}

Plan arena(const Problem& problem) { return ArenaPlan(problem).build(); }

}  // namespace ringdp::plan
