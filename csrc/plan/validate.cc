#include "plan/validate.h"

#include "base/bytes.h"

namespace ringdp::plan {
namespace {

std::string entry(const std::string& field, size_t i, int64_t value) {
  return field + "[" + std::to_string(i) + "]=" + std::to_string(value);
}

// One part per rank, or none; all of them together must fit into memory that can be addressed.
void validate_parts(const std::string& field, const std::vector<int64_t>& parts, const Problem& problem) {
  require(parts.empty() || parts.size() == static_cast<size_t>(problem.world),
          field + " has " + std::to_string(parts.size()) + " entries for world=" + std::to_string(problem.world) +
              ": give one for each rank, or none if all parts are equal");
  int64_t sum = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    require(parts[i] >= 0, entry(field, i, parts[i]) + " must not be negative");
    require(!__builtin_add_overflow(sum, parts[i], &sum), "the sum of " + field + " does not fit into 64 bits");
  }
  checked_mul(sum, size_of(wide_of(problem.dtype)));
}

void validate_hosts(const Problem& problem) {
  const std::vector<int>& hosts = problem.hosts;
  if (hosts.empty()) return;
  require(hosts[0] == 0, entry("hosts", 0, hosts[0]) + " must be 0: the first host starts with rank 0");
  for (size_t i = 1; i < hosts.size(); ++i) {
    require(hosts[i] > hosts[i - 1], entry("hosts", i, hosts[i]) + " must be above " +
                                         entry("hosts", i - 1, hosts[i - 1]) +
                                         ": list the first rank of each host in ascending order");
  }
  require(hosts.back() < problem.world,
          entry("hosts", hosts.size() - 1, hosts.back()) + " must be below world=" + std::to_string(problem.world));
}

// Whether the sum follows the tree is known later: order=tree is not part of a problem that a caller makes.
void validate_roots(const Problem& problem) {
  if (!problem.roots) return;
  const bool reduces = problem.what == Collective::kAllReduce || problem.what == Collective::kReduceScatter;
  const bool sums = problem.op == ReduceOp::kSum || problem.op == ReduceOp::kAvg;
  require(reduces && sums && is_inexact(problem.dtype),
          std::string("roots are for an all_reduce or reduce_scatter with SUM or AVG of floats, not for ") +
              name_of(problem.what) + " with " + name_of(problem.op) + " of " + name_of(problem.dtype));
  require(problem.counts.empty(), "roots need equal parts: counts must be empty");
  require(!problem.on_device, "roots of several leaves are not reduced on devices");
  require(problem.roots->by_rank.size() == static_cast<size_t>(problem.world),
          "roots of " + std::to_string(problem.roots->by_rank.size()) +
              " ranks for world=" + std::to_string(problem.world) + ": give those of each rank");
  problem.roots->program();
}

}  // namespace

void require(bool holds, const std::string& message) {
  if (!holds) throw Error(ErrorKind::kInvalidArgument, message);
}

void require_rank(const std::string& field, int rank, int world) {
  require(rank >= 0 && rank < world,
          field + "=" + std::to_string(rank) + " must be in [0, " + std::to_string(world) + ")");
}

void require_count(int64_t count, int world, DType dtype) {
  require(count >= 0, "count=" + std::to_string(count) + " must not be negative");
  checked_mul(checked_mul(count, world), size_of(wide_of(dtype)));
}

void require_segment_bytes(int64_t bytes) {
  require(bytes > 0, "segment_bytes=" + std::to_string(bytes) + " must be positive");
}

void validate(const Problem& problem) {
  require(problem.world >= 1, "world=" + std::to_string(problem.world) + " must be at least 1");
  require_rank("rank", problem.rank, problem.world);
  require_rank("root", problem.root, problem.world);
  require_count(problem.count, problem.world, problem.dtype);
  require_segment_bytes(problem.segment_bytes);
  require(problem.slot_bytes > 0, "slot_bytes=" + std::to_string(problem.slot_bytes) + " must be positive");
  require(problem.counts.empty() || problem.has_parts(),
          std::string("counts must be empty: ") + name_of(problem.what) + " has no parts of its own for each rank");
  validate_parts("counts", problem.counts, problem);
  validate_parts("sends", problem.sends, problem);
  validate_parts("recvs", problem.recvs, problem);
  validate_hosts(problem);
  validate_roots(problem);
  const int me = problem.rank;
  require(!problem.traits().has_splits() || problem.sent_to(me) == problem.received_from(me),
          entry("sends", me, problem.sent_to(me)) + " must equal " + entry("recvs", me, problem.received_from(me)) +
              ": it is the part that this rank keeps");
}

}  // namespace ringdp::plan
