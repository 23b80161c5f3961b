#include "device/plan/select.h"

#include <algorithm>
#include <limits>

#include "plan/catalog.h"

namespace ringdp::plan {
namespace {

// Bytes that links could carry during a round of flags.
double bytes_per_barrier(const DeviceTopology& topology) {
  return topology.barrier_seconds * topology.bytes_per_second;
}

std::string up_to(int64_t bytes) { return "up to " + std::to_string(bytes) + " bytes"; }

int64_t most_pushed(const DeviceTopology& topology) {
  return topology.can_push ? std::min(push_limit(topology), topology.pushed_bytes / 2) : 0;
}

DeviceChoice select_all_reduce(const DeviceTopology& topology, int64_t bytes) {
  const std::string ranks = std::to_string(topology.world) + " ranks on a full mesh, ";
  const int64_t push = most_pushed(topology);
  if (bytes <= push) return {DeviceAlgorithm::kPush, ranks + up_to(push) + ": flags travel with the data, no barrier"};
  const int64_t crossover = one_shot_limit(topology);
  const int64_t one_shot = std::min(crossover, topology.stage_bytes);
  if (bytes <= one_shot) {
    const std::string limit = one_shot < crossover ? up_to(one_shot) + ", what the stage holds" : up_to(one_shot);
    return {DeviceAlgorithm::kOneShot, ranks + limit + ": every rank sums everything"};
  }
  return {DeviceAlgorithm::kDirect,
          ranks + "beyond " + std::to_string(one_shot) + " bytes: each rank sums its slice for all, two barriers"};
}

DeviceChoice select_reduce(const DeviceTopology& topology, int64_t bytes) {
  const std::string ranks = std::to_string(topology.world) + " ranks, ";
  const int64_t limit = one_shot_limit(topology);
  if (bytes <= limit) return {DeviceAlgorithm::kOneShot, ranks + up_to(limit) + ": the root sums everything"};
  return {DeviceAlgorithm::kDirect,
          ranks + "beyond " + std::to_string(limit) + " bytes: each rank sums its slice for the root"};
}

constexpr int kMostDirect = 16;  // ranks: beyond, slices get small and messages many

bool wishes_direct(const LinkSettings& link_settings) {
  return link_settings.algorithm == AlgorithmChoice::kDirect ||
         (link_settings.algorithm == AlgorithmChoice::kAuto && link_settings.order == Order::kRank);
}

bool goes_by_hierarchy(const LinkSettings& link_settings, const Problem& problem) {
  return !link_settings.hosts.empty() && problem.what == Collective::kAllReduce &&
         problem.count * size_of(problem.dtype) > link_settings.hierarchy_beyond;
}

}  // namespace

int64_t one_shot_limit(const DeviceTopology& topology) {
  const int n = topology.world;
  if (n <= 2) return std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(bytes_per_barrier(topology) * n / ((n - 1) * (n - 2)));
}

int64_t push_limit(const DeviceTopology& topology) {
  return static_cast<int64_t>(bytes_per_barrier(topology) / (4 * std::max(topology.world - 1, 1)));
}

std::string text_of_limits(const DeviceTopology& topology) {
  if (topology.world == 1 || !topology.full_mesh) return "";
  const int64_t push = most_pushed(topology), one_shot = std::min(one_shot_limit(topology), topology.stage_bytes);
  return "all_reduces of " + (push > 0 ? up_to(push) + " by push, " : "") + up_to(one_shot) +
         " by one_shot, others by direct";
}

DeviceChoice select_device_plan(const DeviceTopology& topology, Collective what, int64_t bytes) {
  if (topology.world == 1) return {DeviceAlgorithm::kDirect, "one rank: nothing moves"};
  if (!is_reduction(what))
    return {DeviceAlgorithm::kDirect, std::string("a device's ") + name_of(what) + " is always direct"};
  if (what == Collective::kReduce) return select_reduce(topology, bytes);
  if (!topology.full_mesh) {
    return {DeviceAlgorithm::kRankRing, "not all of " + std::to_string(topology.world) +
                                            " ranks are connected to each other: neighbours only, in rank order"};
  }
  if (what == Collective::kAllReduce) return select_all_reduce(topology, bytes);
  return {DeviceAlgorithm::kDirect, "full mesh: each rank reads its part from all and sums it"};
}

std::string why_no_link_plan(const LinkSettings& link_settings, const Problem& problem) {
  if (problem.what == Collective::kBarrier) return "barrier has no plan between hosts on devices";
  if (!is_reduction(problem.what)) return "";
  const bool encoded = travels_encoded(link_settings, problem);
  if (encoded && !wishes_direct(link_settings)) {
    const bool by_order = link_settings.algorithm == AlgorithmChoice::kAuto;
    const std::string asked = by_order ? "order=rotated" : std::string("algorithm=") + name_of(link_settings.algorithm);
    return asked + " has no plan for wire=" + name_of(link_settings.wire) +
           ": only direct rounds each contribution once";
  }
  const bool scatters_as_hierarchy =
      link_settings.algorithm == AlgorithmChoice::kHierarchy && problem.what == Collective::kReduceScatter;
  const bool direct = encoded || link_settings.algorithm == AlgorithmChoice::kDirect || scatters_as_hierarchy ||
                      !can_plan(DeviceAlgorithm::kRankRing, problem.what);
  if (direct && problem.world > kMaxDeviceSteps) {
    return "direct of " + std::to_string(problem.world) + " ranks is a sum of more than one kernel takes";
  }
  switch (link_settings.algorithm) {
    case AlgorithmChoice::kAuto:
    case AlgorithmChoice::kRing:
    case AlgorithmChoice::kDirect:
      return "";
    case AlgorithmChoice::kHierarchy:
      if (!link_settings.hosts.empty()) return "";
      [[fallthrough]];
    default:
      return std::string("algorithm=") + name_of(link_settings.algorithm) + " has no plan between hosts on devices";
  }
}

DeviceChoice select_link_plan(const LinkSettings& link_settings, const Problem& problem) {
  if (!can_plan(DeviceAlgorithm::kRankRing, problem.what)) {
    return {DeviceAlgorithm::kDirect, std::string(name_of(problem.what)) + " is always direct"};
  }
  if (travels_encoded(link_settings, problem)) {
    const std::string wire = std::string("wire=") + name_of(link_settings.wire);
    return {DeviceAlgorithm::kDirect, wire + ": each contribution is rounded once"};
  }
  if (goes_by_hierarchy(link_settings, problem)) {
    return {DeviceAlgorithm::kHierarchy, std::to_string(link_settings.hosts.size()) +
                                             " hosts of several ranks: one copy per host between them, in rank order"};
  }
  const DeviceAlgorithm ring =
      link_settings.order == Order::kRotated ? DeviceAlgorithm::kRotatedRing : DeviceAlgorithm::kRankRing;
  if (link_settings.algorithm == AlgorithmChoice::kDirect) return {DeviceAlgorithm::kDirect, "algorithm=direct"};
  if (link_settings.algorithm == AlgorithmChoice::kHierarchy) {
    return {DeviceAlgorithm::kDirect, std::string(name_of(problem.what)) + " has no hierarchy"};
  }
  if (link_settings.algorithm == AlgorithmChoice::kRing) return {ring, "algorithm=ring"};
  if (problem.world <= kMostDirect) {
    return {DeviceAlgorithm::kDirect, "up to " + std::to_string(kMostDirect) + " ranks: two rounds"};
  }
  return {DeviceAlgorithm::kRankRing,
          "more than " + std::to_string(kMostDirect) + " ranks: neighbours only, in rank order"};
}

}  // namespace ringdp::plan
