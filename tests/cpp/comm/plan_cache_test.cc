#include "comm/plan_cache.h"

#include <gtest/gtest.h>

#include "comm/meshes.h"

namespace ringdp::comm {
namespace {

AlgorithmChoice algorithm_of_a_small_sum(const Mesh& mesh) {
  return PlanCache(mesh).choice(plan::Collective::kAllReduce, 100).algorithm;
}

// By the identities of ranks, whatever transport was asked for.
TEST(PlanCache, RanksOfSeveralHostsExchangeAndThoseOfOneDoNot) {
  for (const TransportChoice transport : {TransportChoice::kTcp, TransportChoice::kAuto}) {
    for (const int world : {2, 3}) {
      for (const int hosts : {1, world}) {
        MemoryStore store;
        const Meshes group(store, world, with(transport), hosts);
        const bool shared = transport == TransportChoice::kAuto && hosts == 1;
        const auto on_one = shared ? AlgorithmChoice::kArena : AlgorithmChoice::kDirect;
        for (const Mesh& mesh : group.meshes) {
          EXPECT_EQ(algorithm_of_a_small_sum(mesh), hosts == 1 ? on_one : AlgorithmChoice::kExchange);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ringdp::comm
