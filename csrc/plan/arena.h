// Arena: plans over memory that all ranks map. Every rank writes its own slot only and reads everyone's, in rank order.
//
// Tensors in heaps: one_pass()'s plan. No bytes on a link, but for an all_to_all elsewhere: a pair's sizes are known to
// that pair only, so arena() gives direct's plan, which says so. Small sums: one shot, whoever wants the result folds
// everything. Otherwise stages of one slot each, which the executor maps to the two physical slots in turn. Arena
// member index = group rank. Every plan on the arena, also for count 0, passes at least one barrier, because executors
// show and check the ranks' headers there.
//
// Why a slot is never overwritten under a reader: stages k and k+2 share a slot. With one barrier per stage, whoever
// writes stage k+2 has passed the barrier of stage k+1, and everyone arrived there after reading stage k. The staged
// sum needs more, see its loop. The next collective goes on with the other slot, and the same holds across it.
#pragma once
#include <vector>

#include "plan/builder.h"

namespace ringdp::plan {

// Of an all_reduce or reduce: no larger than one_shot_bytes, and than a slot.
bool is_one_shot(const Problem& problem);

// InvalidArgument when slot_bytes has no cache line for each rank.
Plan arena(const Problem& problem);

// An all_reduce in kernels, in one shot without a barrier: ranks wait for nothing but the data, whose flags come with
// it, and the next collective uses other memory.
Plan push(const Problem& problem);

// The channel of a plan that uses an arena: its barriers, and slots cut into equal pieces of whole cache lines.
//
// Every rank names every stage in some Ref, if need be with an empty one: executors count the stages of a plan by its
// Refs, and all members have to go on with the same slot afterwards. So copies of nothing are not left out.
class ArenaChannel {
 public:
  // This rank is `member` of `members`. InvalidArgument when a slot has no cache line for each of `pieces`.
  ArenaChannel(Builder& builder, const Problem& problem, int member, int members, int pieces);

  void signal();
  void wait();
  void barrier();
  bool has_barrier() const { return has_barrier_; }

  void copy(const Ref& src, const Ref& dst, std::vector<After> after = {});
  void fold(const std::vector<Ref>& srcs, const std::vector<Ref>& dsts);  // finishes

  // Elements that fit.
  int64_t slot_elements() const { return slot_bytes_ / element_bytes_; }
  int64_t piece_elements() const { return piece_bytes_ / element_bytes_; }

  Ref slot(int member, int stage, int64_t count) const { return builder_.slot(member, stage, 0, count); }
  // `count` elements from the `begin`th of a piece.
  Ref piece(int member, int stage, int piece, int64_t count, int64_t begin = 0) const {
    return builder_.slot(member, stage, piece * piece_bytes_ + begin * element_bytes_, count);
  }
  // Sources of a fold: `own` at its place, the same elements of the piece in the slots of the others.
  std::vector<Ref> in_rank_order(const Ref& own, int stage, int piece, int64_t begin = 0) const;

  int id() const { return channel_; }

 private:
  Builder& builder_;
  const int channel_, member_, members_;
  const int64_t element_bytes_, slot_bytes_, piece_bytes_;
  bool has_barrier_ = false;
};

}  // namespace ringdp::plan
