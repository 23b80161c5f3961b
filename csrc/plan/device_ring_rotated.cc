#include <vector>

#include "plan/device_builder.h"
#include "plan/device_texts.h"

namespace ringdp::plan {
namespace {

// The textbook ring, twice: the first half of every chunk goes up, the second half down, turn by turn, so links carry
// the same each way. Halves of the elements, not of the blocks: a step is then the same for any number of blocks, one
// included. Two ranks have one neighbour, and one way.
//
// all_reduce: chunk c sets out at rank c, and its sum is complete one rank before c came round. reduce_scatter: one
// rank later on the way, so that it ends at its owner.
class RotatedRing {
  enum Way : int { kUp = 1, kDown = -1 };

 public:
  explicit RotatedRing(const DeviceProblem& problem)
      : problem_(problem),
        rank_(problem.rank),
        world_(problem.world),
        scatter_(problem.what == Collective::kReduceScatter),
        ways_(problem.world == 2 ? std::vector<Way>{kUp} : std::vector<Way>{kUp, kDown}),
        builder_("ring/rotated", problem, scatter_ ? problem.count * problem.world : problem.count, problem.count) {}

  DevicePlan build() {
    for (int turn = 0; turn < world_; ++turn) {
      for (const Way way : ways_) reduce(way, turn);
    }
    for (int turn = 0; !scatter_ && turn < world_; ++turn) {
      for (const Way way : ways_) gather(way, turn);
    }
    // Otherwise the gathered chunks of both neighbours say that they have read what was staged for them.
    if (scatter_) builder_.meet(kExitSlot, ring_neighbours(rank_, world_));
    return builder_.finish();
  }

 private:
  int beside(int way) const { return wrap(rank_ + way, world_); }
  static DeviceSlot slot(Way way) { return way == kUp ? kUpSlot : kDownSlot; }

  // This way's half of chunk c, or all of it.
  Extent half(Way way, int c) const {
    const Extent whole = scatter_ ? Extent{c * problem_.count, (c + 1) * problem_.count}
                                  : device_chunk(problem_, problem_.count, c);
    const Extent part = balanced_part(whole.count(), static_cast<int>(ways_.size()), way == kUp ? 0 : 1,
                                      pack_elements(problem_.dtype));
    return {whole.begin + part.begin, whole.begin + part.end};
  }
  // In the output, of chunk `c`'s half `part`.
  int64_t result_at(const Extent& part, int c) const { return scatter_ ? part.begin - c * problem_.count : part.begin; }

  // The chunk whose prefix this rank passes on, or completes, in `turn`.
  int reduced(Way way, int turn) const { return wrap(rank_ - way * (turn + (scatter_ ? 1 : 0)), world_); }

  void reduce(Way way, int turn) {
    const int c = reduced(way, turn);
    const Extent part = half(way, c);
    const DeviceRef own = DeviceBuilder::input(part.begin);
    const DeviceRef prefix = builder_.stage(part.begin, kOwnRank, turn > 1);
    if (turn > 0) builder_.await(beside(-way), slot(way));
    if (turn == world_ - 1) {
      return builder_.add_last(prefix, own, DeviceBuilder::output(result_at(part, c)), part.count());
    }
    const DeviceRef next = builder_.stage(part.begin, beside(way), turn > 0);
    if (turn == 0) {
      builder_.copy(own, next, part.count());
    } else {
      builder_.add(prefix, own, next, part.count());
    }
    builder_.post(beside(way), slot(way));
  }

  // Chunks go on the same way, beginning with the one that was completed here.
  void gather(Way way, int turn) {
    if (turn > 0) builder_.await(beside(-way), slot(way));
    if (turn == world_ - 1) return;
    const Extent part = half(way, wrap(reduced(way, world_ - 1) - way * turn, world_));
    builder_.copy(DeviceBuilder::output(part.begin), DeviceBuilder::output(part.begin, beside(way)), part.count());
    builder_.post(beside(way), slot(way));
  }

  const DeviceProblem& problem_;
  const int rank_, world_;
  const bool scatter_;
  const std::vector<Way> ways_;
  DeviceBuilder builder_;
};

}  // namespace

DevicePlan device_ring_rotated(const DeviceProblem& problem) { return RotatedRing(problem).build(); }

}  // namespace ringdp::plan
