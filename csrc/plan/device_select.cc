#include "plan/device_select.h"

#include <algorithm>
#include <limits>

namespace ringdp::plan {
namespace {

// Bytes that links could carry during a round of flags.
double bytes_per_barrier(const DeviceTopology& topology) {
  return topology.barrier_seconds * topology.bytes_per_second;
}

std::string up_to(int64_t bytes) { return "up to " + std::to_string(bytes) + " bytes"; }

DeviceChoice select_all_reduce(const DeviceTopology& topology, int64_t bytes) {
  const std::string ranks = std::to_string(topology.world) + " ranks on a full mesh, ";
  const int64_t push = topology.can_push ? std::min(push_limit(topology), topology.pushed_bytes / 2) : 0;
  if (bytes <= push) return {DeviceAlgorithm::kPush, ranks + up_to(push) + ": flags travel with the data, no barrier"};
  const int64_t crossover = one_shot_limit(topology);
  const int64_t one_shot = std::min(crossover, topology.stage_bytes);
  if (bytes <= one_shot) {
    const std::string limit = one_shot < crossover ? up_to(one_shot) + ", what the stage holds" : up_to(one_shot);
    return {DeviceAlgorithm::kOneShot, ranks + limit + ": everybody sums everything"};
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

}  // namespace

int64_t one_shot_limit(const DeviceTopology& topology) {
  const int n = topology.world;
  if (n <= 2) return std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(bytes_per_barrier(topology) * n / ((n - 1) * (n - 2)));
}

int64_t push_limit(const DeviceTopology& topology) {
  return static_cast<int64_t>(bytes_per_barrier(topology) / (4 * std::max(topology.world - 1, 1)));
}

DeviceChoice select_device_plan(const DeviceTopology& topology, Collective what, int64_t bytes) {
  if (topology.world == 1) return {DeviceAlgorithm::kDirect, "one rank: nothing moves"};
  if (!is_sum(what)) return {DeviceAlgorithm::kDirect, std::string("a device's ") + name_of(what) + " is always direct"};
  if (what == Collective::kReduce) return select_reduce(topology, bytes);
  if (!topology.full_mesh) {
    return {DeviceAlgorithm::kRankRing, "not all of " + std::to_string(topology.world) +
                                            " ranks are linked alike: neighbours only, in rank order"};
  }
  if (what == Collective::kAllReduce) return select_all_reduce(topology, bytes);
  return {DeviceAlgorithm::kDirect, "full mesh: each rank reads its part from all and sums it"};
}

}  // namespace ringdp::plan
