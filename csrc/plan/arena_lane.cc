#include "plan/arena_lane.h"

#include <utility>

namespace ringdp::plan {
namespace {

constexpr int64_t kCacheLine = 64;

}  // namespace

ArenaLane::ArenaLane(Builder& builder, const Problem& problem, int member, int members, int pieces)
    : builder_(builder),
      lane_(builder.add_lane("arena")),
      member_(member),
      members_(members),
      element_bytes_(size_of(problem.dtype)),
      slot_bytes_(problem.slot_bytes),
      piece_bytes_(problem.slot_bytes / pieces / kCacheLine * kCacheLine) {
  if (piece_bytes_ >= kCacheLine) return;
  throw Error(ErrorKind::kInvalidArgument, "slot_bytes=" + std::to_string(slot_bytes_) + " is too small for " +
                                               std::to_string(pieces) + " ranks: set it to at least " +
                                               std::to_string(pieces * kCacheLine));
}

void ArenaLane::signal() {
  builder_.signal(lane_);
  has_barrier_ = true;
}

void ArenaLane::wait() { builder_.wait(lane_); }

void ArenaLane::barrier() {
  signal();
  wait();
}

void ArenaLane::copy(const Ref& src, const Ref& dst, std::vector<After> after) {
  builder_.copy(lane_, src, dst, std::move(after));
}

void ArenaLane::fold(const std::vector<Ref>& srcs, const std::vector<Ref>& dsts) {
  builder_.fold(lane_, srcs, dsts, true);
}

std::vector<Ref> ArenaLane::in_rank_order(const Ref& own, int stage, int piece, int64_t begin) const {
  std::vector<Ref> refs;
  for (int q = 0; q < members_; ++q) {
    refs.push_back(q == member_ ? own : this->piece(q, stage, piece, own.count, begin));
  }
  return refs;
}

}  // namespace ringdp::plan
