#include "plan/arena.h"

#include <algorithm>

#include "plan/direct.h"
#include "plan/one_pass.h"

namespace ringdp::plan {

bool is_one_shot(const Problem& problem) {
  const int64_t bytes = problem.count * size_of(problem.dtype);
  return bytes > 0 && bytes <= std::min(problem.one_shot_bytes, problem.slot_bytes);
}

Plan arena(const Problem& problem) {
  if (problem.in_heaps) return one_pass(problem);
  if (problem.what == Collective::kAllToAll) return direct(problem);
  Builder builder("arena", problem);
  ArenaLane lane(builder, problem, problem.rank, problem.world, problem.world);
  switch (problem.what) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kReduceScatter: reduce_in_arena(problem, builder, lane); break;
    default: move_in_arena(problem, builder, lane);
  }
  if (!lane.has_barrier()) lane.barrier();
  return builder.finish();
}

}  // namespace ringdp::plan
