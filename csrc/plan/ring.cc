#include "plan/ring.h"

#include "plan/builder.h"
#include "plan/direct.h"
#include "plan/ring_gather.h"
#include "plan/segment.h"

namespace ringdp::plan {
namespace {

Plan all_gather(const Problem& problem) {
  Builder builder("ring", problem);
  const RingLanes lanes(builder, problem);
  const int64_t largest = problem.largest_part();
  const int64_t elements =
      segment_elements(largest, problem.dtype, problem.segment_bytes, kMaxSegments / problem.world);
  const Extent mine = {0, problem.part(problem.rank)};
  if (mine.count() > 0) builder.copy(lanes.fold, builder.input(0, mine), builder.output(problem.rank, mine));
  RingGather gather;
  gather.first = problem.rank;
  gather.segments = ceil_div(largest, elements);
  gather.own = [&](int, int64_t k) { return builder.input(0, segment(mine, elements, k)); };
  gather.ref = [&](int chunk, int64_t k) {
    return builder.output(chunk, segment({0, problem.part(chunk)}, elements, k));
  };
  gather_round_the_ring(builder, lanes, problem.world, gather);
  return builder.finish();
}

// A chain from the root: hop h of segment m in round m + h.
Plan broadcast(const Problem& problem) {
  Builder builder("ring", problem);
  const RingLanes lanes(builder, problem);
  const Extent whole = {0, problem.count};
  const int64_t elements = segment_elements(problem.count, problem.dtype, problem.segment_bytes);
  const int hops = wrap(problem.rank - problem.root, problem.world);  // from the root to here
  for (int64_t m = 0; m < ceil_div(problem.count, elements); ++m) {
    const int round = static_cast<int>(m) + hops;
    const Extent piece = segment(whole, elements, m);
    Ref held = builder.input(0, piece);
    std::vector<After> after;
    if (hops > 0) {
      held = builder.output(0, piece);
      after = {builder.recv(lanes.recv, lanes.previous, round - 1, held)};
    }
    if (lanes.next != problem.root) builder.send(lanes.send, lanes.next, round, held, after);
  }
  return builder.finish();
}

}  // namespace

Plan ring(const Problem& problem, Order order) {
  switch (problem.what) {
    case Collective::kAllGather: return all_gather(problem);
    case Collective::kBroadcast: return broadcast(problem);
    case Collective::kBarrier: return Builder("ring", problem).finish();  // the executors' opening exchange is one
    case Collective::kReduce: return ring_in_rank_order(problem);
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll: return direct(problem);
    case Collective::kAllReduce:
    case Collective::kReduceScatter: break;
  }
  return order == Order::kRank ? ring_in_rank_order(problem) : ring_rotated(problem);
}

}  // namespace ringdp::plan
