// One collective of all ranks: tensors, plans, simulation, and comparison with the serial oracle bit for bit.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "collective/recorder.h"
#include "plan/catalog.h"
#include "simulate.h"

namespace ringdp::plan::testing {

struct Case {
  AlgorithmChoice algorithm = AlgorithmChoice::kDirect;
  Order order = Order::kRank;
  Problem problem;  // rank is ignored
  bool in_place = false;
  size_t link_bytes = 64;
  uint64_t seed = 1;
};

inline std::string text_of(const Case& c) {
  const Problem& p = c.problem;
  return std::string(name_of(c.algorithm)) + "/" + name_of(c.order) + " " + name_of(p.what) + " " + name_of(p.op) +
         " " + name_of(p.dtype) + " x " + std::to_string(p.count) + ", world " + std::to_string(p.world) + ", root " +
         std::to_string(p.root) + ", segment " + std::to_string(p.segment_bytes) + ", slot " +
         std::to_string(p.slot_bytes) + (c.in_place ? ", in place" : "") + ", link " + std::to_string(c.link_bytes) +
         ", seed " + std::to_string(c.seed);
}

inline std::vector<Plan> plans_of(const Case& c) {
  std::vector<Plan> plans;
  for (int r = 0; r < c.problem.world; ++r) {
    Problem mine = c.problem;
    mine.rank = r;
    plans.push_back(make_plan(c.algorithm, c.order, mine));
  }
  return plans;
}

// User memory of one rank. In place: the tensor of the result is the tensor (or one of the tensors) of the input.
struct Tensors {
  std::vector<Bytes> inputs, outputs;
  bool in_place = false;
  int shared_input = 0, shared_output = 0;

  Tensors(const Case& c, int rank) {
    const Problem& p = c.problem;
    if (p.what == Collective::kBarrier) return;
    const int n_inputs = p.what == Collective::kReduceScatter ? p.world : 1;
    const int n_outputs = p.what == Collective::kAllGather ? p.world : 1;
    in_place = c.in_place || p.what == Collective::kBroadcast;
    shared_input = n_inputs > 1 ? rank : 0;
    shared_output = n_outputs > 1 ? rank : 0;
    for (int i = 0; i < n_inputs; ++i) {
      inputs.push_back(random_tensor(p.count, p.dtype, c.seed * 10007 + rank * 101 + i));
    }
    outputs.assign(n_outputs, Bytes(p.count * size_of(p.dtype), std::byte{0xee}));
  }
  Job job(const Plan& plan) {
    Job job{&plan, {}, {}};
    for (Bytes& t : inputs) job.inputs.push_back({t.data(), static_cast<int64_t>(t.size())});
    for (Bytes& t : outputs) job.outputs.push_back({t.data(), static_cast<int64_t>(t.size())});
    if (in_place && !inputs.empty()) job.outputs[shared_output] = job.inputs[shared_input];
    return job;
  }
  const Bytes& result(int i) const { return in_place && i == shared_output ? inputs[shared_input] : outputs[i]; }
};

// Where the fold of an element starts: in the rotated ring it depends on the chunk.
inline int first_rank(const Case& c, int owner, int64_t element) {
  if (c.algorithm != AlgorithmChoice::kRing || c.order == Order::kRank) return 0;
  if (c.problem.what == Collective::kReduceScatter) return (owner + 1) % c.problem.world;
  int chunk = 0;
  while (element >= balanced_part(c.problem.count, c.problem.world, chunk).end) ++chunk;
  return chunk;
}

// The outputs that rank `rank` must end with, computed from everyone's inputs.
inline std::vector<Bytes> expected(const Case& c, const std::vector<Tensors>& start, int rank) {
  const Problem& p = c.problem;
  std::vector<Bytes> outputs;
  if (p.what == Collective::kBarrier) return outputs;
  if (p.what == Collective::kBroadcast) return {start[p.root].inputs[0]};
  if (p.what == Collective::kAllGather) {
    for (const Tensors& t : start) outputs.push_back(t.inputs[0]);
    return outputs;
  }
  const int tensor = p.what == Collective::kReduceScatter ? rank : 0;
  std::vector<const std::byte*> everyones;
  for (const Tensors& t : start) everyones.push_back(t.inputs[tensor].data());
  outputs.emplace_back(p.count * size_of(p.dtype));
  for (int64_t i = 0; i < p.count; ++i) {
    fold_serially(everyones, i, first_rank(c, rank, i), p.dtype, p.op, outputs[0].data(), i);
  }
  return outputs;
}

// Runs `cases` (of one world) one after the other on the same simulator; each result must equal its oracle.
inline void check_sequence(const std::vector<Case>& cases) {
  const Case& first = cases[0];
  const int world = first.problem.world;
  Simulator simulator(world, first.link_bytes, first.problem.slot_bytes, first.seed);
  std::vector<std::vector<Plan>> plans;
  std::vector<std::vector<Tensors>> start, tensors;
  for (const Case& c : cases) {
    plans.push_back(plans_of(c));
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
      for (size_t k = 0; k < want.size(); ++k) {
        ASSERT_TRUE(tensors[i][r].result(static_cast<int>(k)) == want[k])
            << text_of(cases[i]) << ": rank " << r << ", output " << k << ", collective " << i;
      }
      const bool kept = tensors[i][r].in_place || tensors[i][r].inputs == start[i][r].inputs;
      ASSERT_TRUE(kept) << text_of(cases[i]) << ": inputs of rank " << r << " were written";
    }
  }
}

inline void check(const Case& c) { check_sequence({c}); }

inline std::vector<int64_t> interesting_counts(int world) { return {0, 1, world - 1, world, world + 1, 1000, 4097}; }

// Every collective x world 1..9 x count x segment x dtype; ops, roots, in-place and link capacities take turns.
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
          c.in_place = seed / 2 % 2 == 0;
          // From less than an element to less than a segment to plenty.
          c.link_bytes = count <= world + 1 ? 1 + seed % 7 : std::vector<size_t>{24, 64, 1 << 16}[seed % 3];
          c.problem.what = what;
          c.problem.dtype = dtype;
          const ReduceOp ops[] = {ReduceOp::kSum, is_floating(dtype) ? ReduceOp::kAvg : ReduceOp::kMax,
                                  ReduceOp::kSum, ReduceOp::kMin};
          c.problem.op = ops[seed / 4 % 4];
          c.problem.world = world;
          c.problem.root = static_cast<int>(seed % world);
          c.problem.count = count;
          c.problem.segment_bytes = segment_bytes;
          c.problem.slot_bytes = segment_bytes == 64 ? 640 : 4096;
          check(c);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace ringdp::plan::testing
