// Runs a sequence of collectives on host threads and compares every output with the serial oracle, bit for bit.
#pragma once
#include <algorithm>
#include <string>

#include "gpu/device/host_case.h"

namespace ringdp::gpu::testing {

// One collective of a sequence.
struct Collected {
  plan::testing::DeviceKind kind = {plan::DeviceAlgorithm::kDirect, plan::Collective::kAllReduce};
  int64_t packs = 13;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  bool in_place = false;  // where the collective may be
  int root = 1;           // modulo the world
  int64_t segment_bytes = 32;
};

inline plan::DeviceProblem problem_of(const Collected& one, int world) {
  plan::DeviceProblem problem = plan::testing::device_problem(one.kind, world, one.packs, one.dtype);
  problem.op = one.op;
  problem.root = one.root % world;
  problem.segment_bytes = one.segment_bytes;
  return problem;
}

inline Launch launch_of(const HostLayout& layout, const Collected& one) {
  const plan::DeviceProblem problem = problem_of(one, layout.world);
  Launch launch;
  launch.plans = plan::testing::device_plans(one.kind.algorithm, problem);
  launch.kernel = sum_kernel(one.dtype, layout.world);
  launch.divisor = one.op == ReduceOp::kAvg ? 3 : 0;  // no power of two
  launch.in_place = one.in_place && (one.kind.what == plan::Collective::kAllReduce ||
                                     one.kind.what == plan::Collective::kReduce);
  return launch;
}

inline std::vector<Launch> launches_of(const HostLayout& layout, const std::vector<Collected>& sequence) {
  std::vector<Launch> launches;
  for (const Collected& one : sequence) launches.push_back(launch_of(layout, one));
  return launches;
}

// What every rank brings to launch `i`.
inline Inputs inputs_of(const Launch& launch, uint32_t seed) {
  Inputs inputs;
  for (const plan::DevicePlan& plan : launch.plans) {
    inputs.emplace_back(plan.input * size_of(plan.dtype));
    fill(inputs.back().data(), plan.dtype, plan.input, seed * 64 + plan.rank);
  }
  return inputs;
}

// A sequence of collectives and what every output must be.
class HostRun {
 public:
  HostRun(const HostLayout& layout, const std::vector<Collected>& sequence)
      : layout_(layout), sequence_(sequence), launches_(launches_of(layout, sequence)) {
    for (size_t i = 0; i < sequence.size(); ++i) inputs_.push_back(inputs_of(launches_[i], layout.seed + i));
  }

  uint64_t epoch = 0;                                          // launches that are over before the first
  std::function<void(Work&)> mutate = [](Work&) {};            // breaks what is about to run
  std::vector<Launch>& launches() { return launches_; }        // to be broken too; what is right was settled before

  // "" or a sentence on the first output that is wrong.
  std::string run() {
    HostGroup group(layout_, launches_);
    group.mutate = mutate;
    for (int r = 0; r < layout_.world; ++r) group.rank(r).epoch.launches = epoch;
    group.before = [&](int rank, int i) {
      std::copy(inputs_[i][rank].begin(), inputs_[i][rank].end(), group.input(rank, i));
    };
    group.after = [&](int rank, int i) { look(group, rank, i); };
    group.run();
    for (int r = 0; r < layout_.world; ++r) {
      if (group.rank(r).expired.set != 0) wrong("rank " + std::to_string(r) + " has given up");
    }
    if (!group.buffers_are_whole()) wrong("a buffer was left");
    return wrong_;
  }

 private:
  void look(HostGroup& group, int rank, int i) {
    const plan::DeviceProblem problem = problem_of(sequence_[i], layout_.world);
    const plan::DevicePlan& plan = launches_[i].plans[rank];
    const std::vector<char> right = expected(plan, inputs_[i], problem.root, launches_[i].divisor);
    const bool is_looked_at = plan::testing::has_output(plan, problem.root);
    if (is_looked_at && !std::equal(right.begin(), right.end(), group.output(rank, i))) {
      wrong("launch " + std::to_string(i) + " is wrong: " + text_of(plan));
    }
    // A caller does as it likes with its tensors now: who still reads them is found out.
    std::memset(group.input(rank, i), 0x5a, inputs_[i][rank].size());
  }

  void wrong(const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (wrong_.empty()) wrong_ = what;
  }

  const HostLayout layout_;
  const std::vector<Collected> sequence_;
  std::vector<Launch> launches_;
  std::vector<Inputs> inputs_;
  std::mutex mutex_;
  std::string wrong_;
};

}  // namespace ringdp::gpu::testing
