// Runs collectives of all ranks through plans and simulation, and compares with the serial oracle bit for bit.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "collective/inspect.h"
#include "long_tests.h"
#include "plan/halving.h"
#include "tensors.h"

namespace ringdp::plan::testing {

// Runs `cases` (of one world), whose ranks have these plans, one after the other on the same simulator; each result
// must equal its oracle.
inline void check_sequence(const std::vector<Case>& cases, const std::vector<std::vector<Plan>>& plans) {
  const Case& first = cases[0];
  const int world = first.problem.world;
  Simulator simulator(world, first.link_bytes, first.problem.slot_bytes, first.seed, first.problem.hosts);
  std::vector<std::vector<Tensors>> start, tensors;
  for (const Case& c : cases) {
    start.emplace_back();
    for (int r = 0; r < world; ++r) start.back().emplace_back(c, r);
    tensors.push_back(start.back());
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    for (int r = 0; r < world; ++r) simulator.add(r, tensors[i][r].job(plans[i][r]));
  }
  ASSERT_EQ(simulator.run(), "") << text_of(first);
  for (size_t i = 0; i < cases.size(); ++i) {
    for (int r = 0; r < world; ++r) {
      const std::vector<Bytes> want = expected(cases[i], start[i], r);
      ASSERT_EQ(want.size(), tensors[i][r].outputs.size()) << text_of(cases[i]);
      for (size_t k = 0; k < want.size(); ++k) {
        ASSERT_TRUE(tensors[i][r].result(k) == want[k])
            << text_of(cases[i]) << ": rank " << r << ", output " << k << ", collective " << i;
      }
      ASSERT_TRUE(tensors[i][r].kept_inputs_of(start[i][r]))
          << text_of(cases[i]) << ": inputs of rank " << r << " were written";
    }
  }
}

inline void check_sequence(const std::vector<Case>& cases) {
  std::vector<std::vector<Plan>> plans;
  for (const Case& c : cases) plans.push_back(plans_of(c));
  check_sequence(cases, plans);
}

inline void check(const Case& c) { check_sequence({c}); }

// An all_reduce on each kind of hosts of up to `most` ranks, as with_hosts(hosts, world) makes it; types and tensors in
// place take turns.
template <class WithHosts>
void check_all_hosts(int most, WithHosts with_hosts) {
  for (int world = 2; world <= most; ++world) {
    uint64_t number = 0;
    for (const std::vector<int>& hosts : all_hosts(world)) {
      Case c = with_hosts(hosts, world);
      c.problem.dtype = number % 2 ? DType::kBF16 : DType::kF32;
      c.problem.op = ReduceOp::kAvg;
      c.in_place = number % 3 == 0;
      c.seed = ++number;
      check(c);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

inline int64_t rounds_of(const std::vector<Plan>& plans) {
  int64_t rounds = 0;
  for (const Plan& plan : plans) rounds = std::max(rounds, collective::totals(plan).rounds);
  return rounds;
}

inline std::vector<int64_t> interesting_counts(int world) { return {0, 1, world - 1, world, world + 1, 1000, 4097}; }

// Many short segments of a long tensor, and under a sanitizer all but a few worlds, are for long runs.
inline bool is_for_long_runs(int world, int64_t count, int64_t segment_bytes) {
  if (long_tests()) return false;
  return (count > 4000 && segment_bytes < 100) || (kSanitized && (count > 4000 || (world != 2 && world != 5)));
}

// Every collective x world 1..9 x count x segment x dtype; ops, roots, uneven parts, hosts, in-place and link
// capacities take turns.
inline void check_everything(AlgorithmChoice algorithm, Order order, Collective what) {
  uint64_t seed = 0;
  for (int world = 1; world <= 9; ++world) {
    for (const int64_t count : interesting_counts(world)) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32}) {
        for (const int64_t segment_bytes : {64, 1000}) {
          Case c;
          c.algorithm = algorithm;
          c.order = order;
          c.seed = ++seed;
          if (is_for_long_runs(world, count, segment_bytes)) continue;
          if (algorithm == AlgorithmChoice::kHalving && !can_halve(world)) continue;
          c.in_place = seed / 2 % 2 == 0;
          // From less than an element to less than a segment to plenty.
          c.link_bytes = count <= world + 1 ? 1 + seed % 7 : std::vector<size_t>{24, 64, 1 << 16}[seed % 3];
          c.problem.what = what;
          c.problem.dtype = dtype;
          const ReduceOp ops[] = {ReduceOp::kSum, is_floating(dtype) ? ReduceOp::kAvg : ReduceOp::kMax, ReduceOp::kSum,
                                  ReduceOp::kMin};
          c.problem.op = ops[seed / 4 % 4];
          c.problem.world = world;
          c.problem.root = static_cast<int>(seed % world);
          c.problem.count = count;
          c.problem.segment_bytes = segment_bytes;
          c.problem.slot_bytes = segment_bytes == 64 ? 640 : 4096;
          if (seed / 8 % 3 != 0) make_uneven(c);
          std::mt19937_64 random(seed);
          if (algorithm == AlgorithmChoice::kHierarchy) c.problem.hosts = random_hosts(world, 1 + seed % 3, random);
          check(c);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// ---- arena plans with small slots

constexpr int64_t kSlotBytes = 640;

inline Case arena_case(Collective what, int world, int64_t count) {
  Case c;
  c.algorithm = AlgorithmChoice::kArena;
  c.problem.what = what;
  c.problem.world = world;
  c.problem.count = count;
  c.problem.slot_bytes = kSlotBytes;
  return c;
}

// Bytes of the piece of a slot that belongs to one of `pieces`: whole cache lines.
inline int64_t piece_bytes(int pieces) { return kSlotBytes / pieces / 64 * 64; }

inline int64_t barriers_of(const Plan& plan) {
  int64_t waits = 0;
  for (const Channel& channel : plan.channels) {
    for (const Step& step : channel.steps) waits += step.verb == Verb::kWait;
  }
  return waits;
}

}  // namespace ringdp::plan::testing
