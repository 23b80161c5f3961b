// The lane of a plan that uses an arena: its barriers, and slots cut into equal pieces of whole cache lines.
//
// Every rank names every stage in some Ref, if need be with an empty one: executors count the stages of a plan by its
// Refs, and all members have to go on with the same slot afterwards. So copies of nothing are not left out.
#pragma once
#include <vector>

#include "plan/builder.h"

namespace ringdp::plan {

class ArenaLane {
 public:
  // This rank is `member` of `members`. InvalidArgument when a slot has no cache line for each of `pieces`.
  ArenaLane(Builder& builder, const Problem& problem, int member, int members, int pieces);

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

  int id() const { return lane_; }

 private:
  Builder& builder_;
  const int lane_, member_, members_;
  const int64_t element_bytes_, slot_bytes_, piece_bytes_;
  bool has_barrier_ = false;
};

}  // namespace ringdp::plan
