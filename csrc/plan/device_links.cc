#include "plan/device_links.h"

#include <algorithm>

#include "plan/catalog.h"
#include "plan/device_hierarchy.h"
#include "plan/direct.h"
#include "plan/encoded_fold.h"
#include "plan/host_place.h"
#include "plan/owner_fold.h"
#include "plan/ring.h"
#include "plan/segment.h"
#include "plan/validate.h"
#include "plan/window.h"

namespace ringdp::plan {
namespace {

constexpr int kMostDirect = 16;  // ranks: beyond, slices get small and messages many
// ring/rank, hierarchy: enough segments to keep all ranks busy, each of which is worth a round's start on the device.
constexpr int64_t kSegments = 8, kLeastSegment = 64 << 10, kMostSegment = 1 << 20;  // bytes

// Direct sends each slice at once.
constexpr int64_t kUncut = int64_t{1} << 62;

// Of a pipeline of so many packs.
int64_t pipeline_segment(int64_t packs) {
  return std::clamp(ceil_div(packs, kSegments) * kDevicePackBytes, kLeastSegment, kMostSegment);
}

int64_t bytes_of_segment(DeviceAlgorithm algorithm, const DeviceProblem& problem) {
  const bool scatter = problem.what == Collective::kReduceScatter;
  const int64_t packs = ceil_div(problem.count, pack_elements(problem.dtype));  // of a part
  if (algorithm == DeviceAlgorithm::kDirect) return kUncut;
  // One group of segments: else a round's number would come again.
  if (algorithm == DeviceAlgorithm::kRotatedRing) {
    const int64_t chunk = scatter ? packs : ceil_div(packs, problem.world);
    return std::max<int64_t>(ceil_div(chunk, kWindow), 1) * kDevicePackBytes;
  }
  const int64_t wanted = pipeline_segment(packs);
  const int64_t most = std::max<int64_t>(kMaxSegments / (scatter ? problem.world : 1), 1);
  return std::max(wanted, ceil_div(packs, most) * kDevicePackBytes);
}

bool wishes_direct(const LinkWish& wish) {
  return wish.algorithm == AlgorithmChoice::kDirect ||
         (wish.algorithm == AlgorithmChoice::kAuto && wish.order == Order::kRank);
}

bool goes_by_hierarchy(const LinkWish& wish, const DeviceProblem& problem) {
  return !wish.hosts.empty() && problem.what == Collective::kAllReduce &&
         problem.count * size_of(problem.dtype) > wish.hierarchy_beyond;
}

Problem asked_of(const DeviceProblem& problem, WireType wire) {
  Problem asked;
  asked.what = problem.what;
  asked.dtype = problem.dtype;
  asked.op = problem.op;
  asked.wire = wire;
  asked.rank = problem.rank;
  asked.world = problem.world;
  asked.root = problem.root;
  asked.count = problem.count;
  return asked;
}

Plan hierarchy_of(Problem asked, const std::vector<int>& hosts) {
  asked.hosts = hosts;
  const int64_t chunk = ceil_div(asked.count, HostPlace(asked).smallest);
  asked.segment_bytes = pipeline_segment(ceil_div(chunk, pack_elements(asked.dtype)));
  return device_hierarchy(asked);
}

}  // namespace

std::string why_no_link_plan(const LinkWish& wish, const DeviceProblem& problem) {
  if (problem.what == Collective::kBarrier) return "barrier has no plan between hosts on devices";
  if (!is_sum(problem.what)) return "";
  const bool encoded = travels_encoded(wish, problem);
  if (encoded && !wishes_direct(wish)) {
    const bool by_order = wish.algorithm == AlgorithmChoice::kAuto;
    const std::string asked = by_order ? "order=rotated" : std::string("algorithm=") + name_of(wish.algorithm);
    return asked + " has no plan for wire=" + name_of(wish.wire) + ": only direct rounds each contribution once";
  }
  const bool scatters_as_hierarchy =
      wish.algorithm == AlgorithmChoice::kHierarchy && problem.what == Collective::kReduceScatter;
  const bool direct = encoded || wish.algorithm == AlgorithmChoice::kDirect || scatters_as_hierarchy ||
                      !can_plan(DeviceAlgorithm::kRankRing, problem.what);
  if (direct && problem.world > kMaxDeviceSteps) {
    return "direct of " + std::to_string(problem.world) + " ranks is a sum of more than one kernel takes";
  }
  switch (wish.algorithm) {
    case AlgorithmChoice::kAuto:
    case AlgorithmChoice::kRing:
    case AlgorithmChoice::kDirect: return "";
    case AlgorithmChoice::kHierarchy:
      if (!wish.hosts.empty()) return "";
      [[fallthrough]];
    default: return std::string("algorithm=") + name_of(wish.algorithm) + " has no plan between hosts on devices";
  }
}

bool travels_encoded(const LinkWish& wish, const DeviceProblem& problem) {
  return asked_of(problem, wish.wire).travels_encoded();
}

DeviceChoice select_link_plan(const LinkWish& wish, const DeviceProblem& problem) {
  if (!can_plan(DeviceAlgorithm::kRankRing, problem.what)) {
    return {DeviceAlgorithm::kDirect, std::string(name_of(problem.what)) + " is always direct"};
  }
  if (travels_encoded(wish, problem)) {
    const std::string wire = std::string("wire=") + name_of(wish.wire);
    return {DeviceAlgorithm::kDirect, wire + ": each contribution is rounded once"};
  }
  if (goes_by_hierarchy(wish, problem)) {
    return {DeviceAlgorithm::kHierarchy,
            std::to_string(wish.hosts.size()) + " hosts of several ranks: one copy per host between them, in rank order"};
  }
  const DeviceAlgorithm ring = wish.order == Order::kRank ? DeviceAlgorithm::kRankRing : DeviceAlgorithm::kRotatedRing;
  if (wish.algorithm == AlgorithmChoice::kDirect) return {DeviceAlgorithm::kDirect, "algorithm=direct"};
  if (wish.algorithm == AlgorithmChoice::kHierarchy) {
    return {DeviceAlgorithm::kDirect, std::string(name_of(problem.what)) + " has no hierarchy"};
  }
  if (wish.algorithm == AlgorithmChoice::kRing) return {ring, "algorithm=ring"};
  if (problem.world <= kMostDirect) {
    return {DeviceAlgorithm::kDirect, "up to " + std::to_string(kMostDirect) + " ranks: two rounds"};
  }
  return {DeviceAlgorithm::kRankRing,
          "more than " + std::to_string(kMostDirect) + " ranks: neighbours only, in rank order"};
}

// The first rank has the longest slice, the second of a ring passes sums on and in, hosts pass them on or in or both, and
// a root sums alone.
std::set<int> most_in_need(const DeviceProblem& problem, const LinkWish& wish) {
  std::set<int> ranks = {0, std::min(1, problem.world - 1), problem.root};
  ranks.insert(wish.hosts.begin(), wish.hosts.end());
  return ranks;
}

Plan make_link_plan(DeviceAlgorithm algorithm, const DeviceProblem& problem, const LinkWish& wish) {
  Problem asked = asked_of(problem, wish.wire);
  asked.segment_bytes = bytes_of_segment(algorithm, problem);
  validate(asked);
  const int64_t pack = pack_elements(problem.dtype);
  if (!is_sum(problem.what)) return direct(asked);
  if (asked.travels_encoded()) return fold_encoded(asked);
  if (algorithm == DeviceAlgorithm::kHierarchy) return hierarchy_of(asked, wish.hosts);
  if (algorithm == DeviceAlgorithm::kRankRing) return ring_in_rank_order(asked);
  if (algorithm == DeviceAlgorithm::kRotatedRing) return ring_rotated(asked, {pack, false});  // no kernel only widens
  return fold_at_owners("direct", asked, slices_of(asked, pack));
}

}  // namespace ringdp::plan
