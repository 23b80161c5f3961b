#include "device/plan/catalog.h"

#include <algorithm>
#include <limits>

#include "device/plan/lower.h"
#include "plan/arena.h"
#include "plan/catalog.h"
#include "plan/direct.h"
#include "plan/hierarchy.h"
#include "plan/host_stages.h"
#include "plan/pipeline.h"
#include "plan/ring.h"
#include "plan/validate.h"

namespace ringdp::plan {
namespace {

// Segments of ring/rank: six steps each, and the flags at the end of a reduce_scatter.
constexpr int64_t kMostSegments = (kMaxDeviceSteps - 2 * (kMaxDeviceRanks - 1)) / 6;

bool has_ring(Collective what) { return what == Collective::kAllReduce || what == Collective::kReduceScatter; }

bool has_one_shot(Collective what) { return what == Collective::kAllReduce || what == Collective::kReduce; }

void require_elements(const Problem& problem) {
  const std::string dtype = name_of(problem.dtype);
  require(is_number(problem.dtype) || problem.dtype == DType::kBool,
          "dtype=" + dtype + " has no device plan: move it as uint8, sum complex numbers as their parts");
  require(!is_reduction(problem.what) || can_reduce(problem.dtype, problem.op),
          std::string(name_of(problem.op)) + " has no meaning on " + dtype);
  require_count(problem.count, problem.world, problem.dtype);
  require(problem.what != Collective::kBarrier || problem.count == 0,
          "count=" + std::to_string(problem.count) + " must be 0: a barrier moves nothing");
  const int64_t pack = pack_elements(problem.dtype);
  require(problem.count % pack == 0, "count=" + std::to_string(problem.count) + " of " + dtype + " is no multiple of " +
                                         std::to_string(pack) +
                                         ", a pack of 16 bytes: pad the tensor, or each of its parts");
  require_segment_bytes(problem.segment_bytes);
}

void validate(DeviceAlgorithm algorithm, const Problem& problem) {
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

// The problem as plan/ takes it: slots of any size, and a barrier when there is nothing to move.
Problem in_kernels(DeviceAlgorithm algorithm, Problem problem) {
  const bool in_one_shot = algorithm == DeviceAlgorithm::kOneShot;
  if (problem.count == 0 && problem.world > 1) problem.what = Collective::kBarrier;
  problem.on_device = true;
  problem.in_heaps = !in_one_shot || problem.what != Collective::kAllReduce;  // else others read copies
  problem.slot_bytes = std::numeric_limits<int64_t>::max();
  problem.one_shot_bytes = in_one_shot ? problem.slot_bytes : 0;
  problem.most_segments = kMostSegments;
  return problem;
}

// ---- messages

// ring/rank, hierarchy: enough segments to keep all ranks busy, each large enough to be worth a kernel launch.
constexpr int64_t kSegments = 8, kLeastSegment = 64 << 10, kMostSegment = 1 << 20;  // bytes

// Direct sends each slice in one message.
constexpr int64_t kUncut = int64_t{1} << 62;

// The segment size of a pipeline of so many packs.
int64_t pipeline_segment(int64_t packs) {
  return std::clamp(ceil_div(packs, kSegments) * kDevicePackBytes, kLeastSegment, kMostSegment);
}

int64_t bytes_of_segment(DeviceAlgorithm algorithm, const Problem& problem) {
  const bool scatter = problem.what == Collective::kReduceScatter;
  const int64_t packs = ceil_div(problem.count, pack_elements(problem.dtype));  // of a part
  if (algorithm == DeviceAlgorithm::kDirect) return kUncut;
  // One group of segments: else round numbers would repeat.
  if (algorithm == DeviceAlgorithm::kRotatedRing) {
    const int64_t chunk = scatter ? packs : ceil_div(packs, problem.world);
    return std::max<int64_t>(ceil_div(chunk, kWindow), 1) * kDevicePackBytes;
  }
  const int64_t wanted = pipeline_segment(packs);
  const int64_t most = std::max<int64_t>(problem.most_segments / (scatter ? problem.world : 1), 1);
  return std::max(wanted, ceil_div(packs, most) * kDevicePackBytes);
}

Problem asked_of(Problem problem, WireType wire) {
  problem.wire = wire;
  problem.on_device = true;
  return problem;
}

Plan hierarchy_of(Problem asked, const std::vector<int>& hosts) {
  asked.hosts = hosts;
  const int64_t chunk = ceil_div(asked.count, HostPlace(asked).smallest);
  asked.segment_bytes = pipeline_segment(ceil_div(chunk, pack_elements(asked.dtype)));
  asked.in_heaps = true;
  return hierarchy(asked);
}

}  // namespace

const char* name_of(DeviceAlgorithm algorithm) {
  static constexpr const char* kNames[kDeviceAlgorithmCount] = {"direct",    "one_shot",     "push",
                                                                "ring/rank", "ring/rotated", "hierarchy"};
  return kNames[static_cast<int>(algorithm)];
}

bool can_plan(DeviceAlgorithm algorithm, Collective what) {
  switch (algorithm) {
    case DeviceAlgorithm::kDirect:
      return true;
    case DeviceAlgorithm::kOneShot:
      return has_one_shot(what);
    case DeviceAlgorithm::kPush:
      return what == Collective::kAllReduce;
    case DeviceAlgorithm::kRankRing:
    case DeviceAlgorithm::kRotatedRing:
      return has_ring(what);
    case DeviceAlgorithm::kHierarchy:
      return false;
  }
  return false;
}

// Others read copies in the stages, or what was pushed.
bool is_on_own_tensors(DeviceAlgorithm algorithm, Collective what, int world) {
  const bool copies = algorithm == DeviceAlgorithm::kOneShot || algorithm == DeviceAlgorithm::kPush;
  return world == 1 || (what == Collective::kAllReduce && copies);
}

Plan make_memory_plan(DeviceAlgorithm algorithm, const Problem& problem) {
  validate(algorithm, problem);
  const Problem asked = in_kernels(algorithm, problem);
  if (asked.what == Collective::kBarrier) return make_plan(AlgorithmChoice::kArena, Order::kRank, asked);
  switch (algorithm) {
    case DeviceAlgorithm::kRankRing:
      return make_plan(AlgorithmChoice::kRing, Order::kRank, asked);
    case DeviceAlgorithm::kRotatedRing:
      return make_plan(AlgorithmChoice::kRing, Order::kRotated, asked);
    case DeviceAlgorithm::kPush:
      if (asked.world > 1) return push(asked);
      [[fallthrough]];
    default:
      return make_plan(AlgorithmChoice::kArena, Order::kRank, asked);
  }
}

DevicePlan make_device_plan(DeviceAlgorithm algorithm, const Problem& problem) {
  DevicePlan plan = lower(problem, [&](const Problem& own) { return make_memory_plan(algorithm, own); });
  if (problem.world > 1) plan.algorithm = name_of(problem.count > 0 ? algorithm : DeviceAlgorithm::kDirect);
  plan.what = problem.what;
  return plan;
}

bool travels_encoded(const LinkSettings& link_settings, const Problem& problem) {
  return asked_of(problem, link_settings.wire).travels_encoded();
}

// The first rank has the longest slice, the second rank of a ring both receives and sends partial sums, hosts do either
// or both, and a root sums alone.
std::set<int> ranks_with_most_scratch(const Problem& problem, const LinkSettings& link_settings) {
  std::set<int> ranks = {0, std::min(1, problem.world - 1), problem.root};
  ranks.insert(link_settings.hosts.begin(), link_settings.hosts.end());
  return ranks;
}

Plan make_link_plan(DeviceAlgorithm algorithm, const Problem& problem, const LinkSettings& link_settings) {
  Problem asked = asked_of(problem, link_settings.wire);
  asked.segment_bytes = bytes_of_segment(algorithm, problem);
  validate(asked);
  if (algorithm == DeviceAlgorithm::kHierarchy) return hierarchy_of(asked, link_settings.hosts);
  if (algorithm == DeviceAlgorithm::kRankRing) return ring(asked, Order::kRank);
  if (algorithm == DeviceAlgorithm::kRotatedRing) return ring(asked, Order::kRotated);
  return direct(asked);
}

}  // namespace ringdp::plan
