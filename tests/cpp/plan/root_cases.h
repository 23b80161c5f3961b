// Test support: reductions to which ranks contribute the roots of their leaves.
#pragma once
#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tensors.h"

namespace ringdp::plan::testing {

inline RootsPtr roots_of_ranks(int micro_batches, const std::vector<std::vector<int>>& leaves) {
  auto roots = std::make_shared<Roots>();
  roots->micro_batches = micro_batches;
  for (const auto& of_rank : leaves) roots->by_rank.push_back(roots_of(micro_batches, of_rank));
  return roots;
}

// Each leaf to some rank; every third time in shares of whole subtrees.
inline RootsPtr random_roots(int world, int micro_batches, std::mt19937_64& random) {
  std::vector<std::vector<int>> leaves(world);
  for (int leaf = 0; leaf < micro_batches; ++leaf) leaves[random() % world].push_back(leaf);
  return roots_of_ranks(micro_batches, random() % 3 == 0 ? allot(even_shares(micro_batches, world)) : leaves);
}

inline Case roots_case(AlgorithmChoice algorithm, Collective what, RootsPtr roots, int64_t count) {
  Case c;
  c.algorithm = algorithm;
  c.order = Order::kTree;
  c.problem.what = what;
  c.problem.world = static_cast<int>(roots->by_rank.size());
  c.problem.count = count;
  c.problem.roots = std::move(roots);
  c.problem.slot_bytes = 64 << 10;
  return c;
}

}  // namespace ringdp::plan::testing
