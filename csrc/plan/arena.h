// Arena: plans over memory that all ranks map. Every rank writes its own slot only and reads all slots, in rank order.
//
// Tensors in heaps: one_pass()'s plan. An all_to_all of other tensors uses links: its sizes are known to pairs only, so
// arena() returns direct's plan, under that name; so do roots for which a slot is too small. Small sums: one shot,
// every rank that gets the result folds all of it. Otherwise stages of one slot each, which the executor maps to the
// two physical slots in turn. Arena member index = group rank. Every plan on the arena, also for count 0, passes at
// least one barrier, because executors publish and check the ranks' headers there.
//
// Why a slot is never overwritten while it is read: stages k and k+2 share a slot. With one barrier per stage, a rank
// that writes stage k+2 has passed the barrier of stage k+1, at which all ranks arrived after reading stage k. The
// staged sum needs more, see its loop. The next collective starts with the other slot, so this holds across
// collectives.
#pragma once
#include <vector>

#include "plan/builder.h"

namespace ringdp::plan {

// Whether an all_reduce or reduce is one shot: no larger than one_shot_bytes, nor than a slot.
bool is_one_shot(const Problem& problem);

// InvalidArgument when a slot is too small for a cache line per rank.
Plan arena(const Problem& problem);

// An all_reduce in kernels, in one shot without a barrier: every word carries its flag (as in NCCL's LL protocol), and
// the next collective uses other memory.
Plan push(const Problem& problem);

// The channel of a plan that uses an arena: its barriers, and slots cut into equal pieces of whole cache lines.
//
// Every rank names every stage in some Ref, if necessary an empty one: executors count the stages of a plan by its
// Refs, and all members must continue with the same slot. So empty copies are not left out.
class ArenaChannel {
 public:
  // Whether slots are large enough for the roots that ranks contribute, if they do, in pieces of so many owners.
  static bool suits_roots(const Problem& problem, int owners);
  // This rank is `member` of `members`. InvalidArgument when a slot is too small for a cache line per piece.
  ArenaChannel(Builder& builder, const Problem& problem, int member, int members, int pieces);

  void arrive();
  void wait();
  void barrier();
  bool has_barrier() const { return has_barrier_; }

  void copy(const Ref& src, const Ref& dst, std::vector<After> after = {});
  void fold(const std::vector<Ref>& srcs, const std::vector<Ref>& dsts);  // with `finish`

  // Elements that fit into a slot or a piece.
  int64_t slot_elements() const { return slot_bytes_ / element_bytes_; }
  int64_t piece_elements() const { return piece_bytes_ / element_bytes_; }

  Ref slot(int member, int stage, int64_t count) const { return builder_.slot(member, stage, 0, count); }
  // `count` elements from the `begin`th of a piece.
  Ref piece(int member, int stage, int piece, int64_t count, int64_t begin = 0) const {
    return builder_.slot(member, stage, piece * piece_bytes_ + begin * element_bytes_, count);
  }
  // Sources of a fold: `own` at this rank's position, the same elements of the piece in the slots of all others.
  std::vector<Ref> in_rank_order(const Ref& own, int stage, int piece, int64_t begin = 0) const;

  int id() const { return channel_; }

 private:
  Builder& builder_;
  const int channel_, member_, members_;
  const int64_t element_bytes_, slot_bytes_, piece_bytes_;
  bool has_barrier_ = false;
};

}  // namespace ringdp::plan
