#include "plan/catalog.h"

#include "base/bytes.h"
#include "plan/arena.h"
#include "plan/builder.h"
#include "plan/direct.h"
#include "plan/ring.h"

namespace ringdp::plan {
namespace {

void require(bool holds, const std::string& message) {
  if (!holds) throw Error(ErrorKind::kInvalidArgument, message);
}

void validate(const Problem& problem) {
  const std::string world = std::to_string(problem.world);
  require(problem.world >= 1, "world=" + world + " must be at least 1");
  require(problem.rank >= 0 && problem.rank < problem.world,
          "rank=" + std::to_string(problem.rank) + " must be in [0, " + world + ")");
  require(problem.root >= 0 && problem.root < problem.world,
          "root=" + std::to_string(problem.root) + " must be in [0, " + world + ")");
  require(problem.count >= 0, "count=" + std::to_string(problem.count) + " must not be negative");
  require(problem.segment_bytes > 0, "segment_bytes=" + std::to_string(problem.segment_bytes) + " must be positive");
  require(problem.slot_bytes > 0, "slot_bytes=" + std::to_string(problem.slot_bytes) + " must be positive");
  checked_mul(checked_mul(problem.count, problem.world), size_of(wide_of(problem.dtype)));
}

// One rank's result is its own contribution: also AVG divides by 1. Executors skip a copy onto itself.
Plan local(const Problem& problem) {
  Builder builder("local", problem);
  const int lane = builder.add_lane("copy");
  const Extent whole = {0, problem.count};
  if (problem.what != Collective::kBarrier && problem.count > 0) {
    builder.copy(lane, builder.input(0, whole), builder.output(0, whole));
  }
  return builder.finish();
}

}  // namespace

const char* name_of(AlgorithmChoice algorithm) {
  switch (algorithm) {
    case AlgorithmChoice::kAuto: return "auto";
    case AlgorithmChoice::kArena: return "arena";
    case AlgorithmChoice::kDirect: return "direct";
    case AlgorithmChoice::kRing: return "ring";
    case AlgorithmChoice::kHierarchy: return "hierarchy";
    case AlgorithmChoice::kTree: return "tree";
    case AlgorithmChoice::kServer: return "server";
  }
  return "unknown algorithm";
}

const char* name_of(Order order) { return order == Order::kRank ? "rank" : "rotated"; }

Plan make_plan(AlgorithmChoice algorithm, Order order, const Problem& problem) {
  validate(problem);
  if (problem.world == 1) return local(problem);
  switch (algorithm) {
    case AlgorithmChoice::kArena: return arena(problem);
    case AlgorithmChoice::kDirect: return direct(problem);
    case AlgorithmChoice::kRing: return ring(problem, order);
    default: break;
  }
  throw Error(ErrorKind::kInvalidArgument,
              std::string("algorithm=") + name_of(algorithm) + " has no plan: choose arena, direct or ring");
}

}  // namespace ringdp::plan
