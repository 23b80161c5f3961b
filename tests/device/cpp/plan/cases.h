// Every kind of device plan there is, and the plans of all ranks for one.
#pragma once
#include <string>
#include <vector>

#include "device/plan/catalog.h"

namespace ringdp::plan::testing {

struct DeviceKind {
  DeviceAlgorithm algorithm;
  Collective what;
};

inline std::vector<DeviceKind> device_kinds() {
  std::vector<DeviceKind> kinds;
  for (int a = 0; a < kDeviceAlgorithmCount; ++a) {
    for (int c = 0; c < kCollectiveCount; ++c) {
      const DeviceKind kind = {static_cast<DeviceAlgorithm>(a), static_cast<Collective>(c)};
      if (can_plan(kind.algorithm, kind.what)) kinds.push_back(kind);
    }
  }
  return kinds;
}

inline std::string text_of(const DeviceKind& kind) {
  return std::string(name_of(kind.what)) + " " + name_of(kind.algorithm);
}

// Packs of the tensor, or of every rank's part.
inline Problem device_problem(const DeviceKind& kind, int world, int64_t packs, DType dtype = DType::kF32) {
  Problem problem;
  problem.what = kind.what;
  problem.dtype = dtype;
  problem.world = world;
  problem.root = world / 2;
  problem.count = kind.what == Collective::kBarrier ? 0 : packs * pack_elements(dtype);
  return problem;
}

// Whether its rank gets anything; a root of a broadcast, and who is no root of a reduce or gather, does not.
inline bool has_output(const DevicePlan& plan, int root) {
  if (plan.world == 1) return true;
  if (plan.what == Collective::kBroadcast) return plan.rank != root;
  return plan.rank == root || (plan.what != Collective::kReduce && plan.what != Collective::kGather);
}

inline std::vector<DevicePlan> device_plans(DeviceAlgorithm algorithm, Problem problem) {
  std::vector<DevicePlan> plans;
  for (problem.rank = 0; problem.rank < problem.world; ++problem.rank) {
    plans.push_back(make_device_plan(algorithm, problem));
  }
  return plans;
}

}  // namespace ringdp::plan::testing
