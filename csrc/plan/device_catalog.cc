#include "plan/device_catalog.h"

#include "plan/device_builder.h"
#include "plan/device_texts.h"
#include "plan/validate.h"

namespace ringdp::plan {
namespace {

bool has_ring(Collective what) { return what == Collective::kAllReduce || what == Collective::kReduceScatter; }

bool has_one_shot(Collective what) { return what == Collective::kAllReduce || what == Collective::kReduce; }

bool is_rooted_move(Collective what) { return what == Collective::kGather || what == Collective::kScatter; }

DevicePlan direct(const DeviceProblem& problem) {
  if (is_sum(problem.what)) return device_direct(problem);
  return is_rooted_move(problem.what) ? device_rooted(problem) : device_moves(problem);
}

void require_elements(const DeviceProblem& problem) {
  const std::string dtype = name_of(problem.dtype);
  require(is_number(problem.dtype) || problem.dtype == DType::kBool,
          "dtype=" + dtype + " has no device plan: move it as uint8, sum complex numbers as their parts");
  require(!is_sum(problem.what) || can_reduce(problem.dtype, problem.op),
          std::string(name_of(problem.op)) + " has no meaning on " + dtype);
  require_count(problem.count, problem.world, problem.dtype);
  require(problem.what != Collective::kBarrier || problem.count == 0,
          "count=" + std::to_string(problem.count) + " must be 0: a barrier moves nothing");
  const int64_t pack = pack_elements(problem.dtype);
  require(problem.count % pack == 0, "count=" + std::to_string(problem.count) + " of " + dtype +
                                         " is no multiple of " + std::to_string(pack) +
                                         ", a pack of 16 bytes: pad the tensor, or each of its parts");
  require_segment_bytes(problem.segment_bytes);
}

void validate(DeviceAlgorithm algorithm, const DeviceProblem& problem) {
  require(problem.world >= 1 && problem.world <= kMaxDeviceRanks,
          "world=" + std::to_string(problem.world) + " must be in [1, " + std::to_string(kMaxDeviceRanks) +
              "]: no more ranks reach each other's memory; join hosts or groups of GPUs by a plan on links");
  require_rank("rank", problem.rank, problem.world);
  require_rank("root", problem.root, problem.world);
  require(can_plan(algorithm, problem.what), std::string("algorithm=") + name_of(algorithm) +
                                                 " has no device plan for " + name_of(problem.what) +
                                                 ": use direct, or the plans on links");
  require_elements(problem);
}

// One rank's result is its own contribution, divided where a mean is asked for.
DevicePlan local(const DeviceProblem& problem) {
  DeviceBuilder builder("local", problem, problem.count, problem.count);
  if (is_sum(problem.what) && problem.op == ReduceOp::kAvg) {
    builder.sum(DeviceBuilder::input(0), DeviceBuilder::output(0), problem.count);
  } else {
    builder.copy(DeviceBuilder::input(0), DeviceBuilder::output(0), problem.count);
  }
  return builder.finish();
}

DevicePlan meeting(DeviceProblem problem) {
  const Collective asked = problem.what;
  problem.what = Collective::kBarrier;
  DevicePlan plan = device_moves(problem);
  plan.what = asked;
  return plan;
}

}  // namespace

const char* name_of(DeviceAlgorithm algorithm) {
  static constexpr const char* kNames[kDeviceAlgorithmCount] = {"direct", "one_shot", "push", "ring/rank",
                                                                "ring/rotated", "hierarchy"};
  return kNames[static_cast<int>(algorithm)];
}

bool is_sum(Collective what) { return has_ring(what) || what == Collective::kReduce; }

bool can_plan(DeviceAlgorithm algorithm, Collective what) {
  switch (algorithm) {
    case DeviceAlgorithm::kDirect: return true;
    case DeviceAlgorithm::kOneShot: return has_one_shot(what);
    case DeviceAlgorithm::kPush: return what == Collective::kAllReduce;
    case DeviceAlgorithm::kRankRing:
    case DeviceAlgorithm::kRotatedRing: return has_ring(what);
    case DeviceAlgorithm::kHierarchy: return false;
  }
  return false;
}

DevicePlan make_device_plan(DeviceAlgorithm algorithm, const DeviceProblem& problem) {
  validate(algorithm, problem);
  if (problem.world == 1) return local(problem);
  if (problem.count == 0) return meeting(problem);
  switch (algorithm) {
    case DeviceAlgorithm::kOneShot:
      return problem.what == Collective::kReduce ? device_rooted(problem) : device_one_shot(problem);
    case DeviceAlgorithm::kPush: return device_push(problem);
    case DeviceAlgorithm::kRankRing: return device_ring_rank(problem);
    case DeviceAlgorithm::kRotatedRing: return device_ring_rotated(problem);
    default: return direct(problem);
  }
}

}  // namespace ringdp::plan
