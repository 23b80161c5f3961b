// Which kernel runs a device plan on host threads, what its tensors hold, and what they must hold afterwards.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "device/cpp/kernel/host_group.h"
#include "device/cpp/plan/cases.h"
#include "device/kernel/element.h"
#include "device/kernel/pack.h"
#include "kernels/fold.h"

namespace ringdp::gpu::testing {

template <class T, class Op>
RunKernel kernel_of(int world) {
  static constexpr RunKernel kKernels[] = {run_steps<HostPrim, T, Op, 1>, run_steps<HostPrim, T, Op, 2>,
                                           run_steps<HostPrim, T, Op, 3>, run_steps<HostPrim, T, Op, 4>,
                                           run_steps<HostPrim, T, Op, 5>, run_steps<HostPrim, T, Op, 6>,
                                           run_steps<HostPrim, T, Op, 7>, run_steps<HostPrim, T, Op, 8>};
  return kKernels[world - 1];
}

// Sums of the three kinds of element there are: own type, widened, integers.
inline RunKernel sum_kernel(DType dtype, int world) {
  if (dtype == DType::kBF16) return kernel_of<BFloat16, Sum>(world);
  if (dtype == DType::kU8) return kernel_of<uint8_t, Sum>(world);
  return kernel_of<float, Sum>(world);
}

// Numbers whose sum depends on its order; the same for the same seed.
inline void fill(char* to, DType dtype, int64_t count, uint32_t seed) {
  std::minstd_rand random(seed + 1);
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < count; ++i) {
      const float value = (static_cast<float>(random() % 2001) - 1000) * (random() % 2 ? 1e-3f : 0.7f);
      T element{};
      if constexpr (std::is_same_v<T, BFloat16>) {
        element.bits = static_cast<uint16_t>(bits_as<uint32_t>(value) >> 16);
      } else if constexpr (std::is_same_v<T, Half>) {
        element.bits = HostPrim::float_to_half(value);
      } else if constexpr (std::is_floating_point_v<T>) {
        element = static_cast<T>(value);
      } else {
        element = static_cast<T>(random());
      }
      if (dtype == DType::kBool) std::memset(&element, random() % 2, 1);
      std::memcpy(to + i * sizeof(T), &element, sizeof(T));
    }
  });
}

using Inputs = std::vector<std::vector<char>>;  // by rank

// The sum over `ranks`, in that order, of elements [begin, begin + count).
inline void fold_ranks(const plan::DevicePlan& plan, const Inputs& inputs, const std::vector<int>& ranks, int64_t begin,
                       int64_t count, double divisor, char* to) {
  std::vector<const void*> srcs;
  for (const int r : ranks) srcs.push_back(inputs[r].data() + begin * size_of(plan.dtype));
  void* dst = to;
  kernels::FoldArgs args;
  args.srcs = srcs.data();
  args.n_srcs = static_cast<int>(srcs.size());
  args.dsts = &dst;
  args.n_dsts = 1;
  args.count = count;
  args.dtype = plan.dtype;
  args.op = plan.op;
  args.divisor = divisor;
  kernels::fold(args);
}

// Ranks from `first` on, `way` at a time, all of them.
inline std::vector<int> ring_order(int world, int first, int way) {
  std::vector<int> ranks;
  for (int k = 0; k < world; ++k) ranks.push_back(((first + way * k) % world + world) % world);
  return ranks;
}

// Elements [begin, end) of a tensor in which they are chunk `c`: ring/rotated sums halves up and down from rank c, a
// reduce_scatter from one further on; everything else in rank order.
inline void fold_chunk(const plan::DevicePlan& plan, const Inputs& inputs, Extent chunk, int c, double divisor,
                       char* to) {
  if (plan.algorithm != "ring/rotated") {
    return fold_ranks(plan, inputs, ring_order(plan.world, 0, 1), chunk.begin, chunk.count(), divisor, to);
  }
  const int late = plan.what == plan::Collective::kReduceScatter ? 1 : 0;
  const int64_t pack = plan::pack_elements(plan.dtype);
  const Extent up = plan.world == 2 ? Extent{0, chunk.count()} : balanced_part(chunk.count(), 2, 0, pack);
  fold_ranks(plan, inputs, ring_order(plan.world, c + late, 1), chunk.begin, up.end, divisor, to);
  fold_ranks(plan, inputs, ring_order(plan.world, c - late, -1), chunk.begin + up.end, chunk.count() - up.end, divisor,
             to + up.end * size_of(plan.dtype));
}

// Elements of every rank's part, of a move.
inline int64_t part_of(const plan::DevicePlan& plan) {
  switch (plan.what) {
    case plan::Collective::kAllToAll:
      return plan.output / plan.world;
    case plan::Collective::kScatter:
      return plan.output;
    default:
      return plan.input;
  }
}

// What rank plan.rank's output must hold, where it has one.
inline std::vector<char> expected(const plan::DevicePlan& plan, const Inputs& inputs, int root, double divisor) {
  const int64_t size = size_of(plan.dtype), part = part_of(plan);
  std::vector<char> result(plan.output * size);
  const auto copy = [&](int64_t to, int from_rank, int64_t from, int64_t count) {
    std::copy_n(inputs[from_rank].begin() + from * size, count * size, result.begin() + to * size);
  };
  switch (plan.what) {
    case plan::Collective::kAllReduce:
    case plan::Collective::kReduce:
      for (int c = 0; c < plan.world; ++c) {
        const Extent chunk = balanced_part(plan.input, plan.world, c, plan::pack_elements(plan.dtype));
        fold_chunk(plan, inputs, chunk, c, divisor, result.data() + chunk.begin * size);
      }
      break;
    case plan::Collective::kReduceScatter:
      fold_chunk(plan, inputs, {plan.rank * plan.output, (plan.rank + 1) * plan.output}, plan.rank, divisor,
                 result.data());
      break;
    case plan::Collective::kBroadcast:
      copy(0, root, 0, plan.output);
      break;
    case plan::Collective::kScatter:
      copy(0, root, plan.rank * part, part);
      break;
    case plan::Collective::kAllGather:
    case plan::Collective::kGather:
      for (int r = 0; r < plan.world; ++r) copy(r * part, r, 0, part);
      break;
    case plan::Collective::kAllToAll:
      for (int r = 0; r < plan.world; ++r) copy(r * part, r, plan.rank * part, part);
      break;
    default:
      break;
  }
  return result;
}

// Test support: the primitives of a kernel in which no thread waits for another, for threads that run one after the
// other.

struct InTurn {
  static constexpr int kBlocks = 3, kThreads = 5;
  inline static int at_block = 0, at_thread = 0;

  static int block() { return at_block; }
  static int blocks() { return kBlocks; }
  static int thread() { return at_thread; }
  static int threads() { return kThreads; }
  static uint32_t load_acquire(const uint32_t* from) { return *from; }
  static void store_release(uint32_t* to, uint32_t value) { *to = value; }
  static uint32_t compare_and_swap(uint32_t* at, uint32_t old, uint32_t fresh) {
    return *at == old ? std::exchange(*at, fresh) : *at;
  }
  static uint32_t add_one(uint32_t* at) { return (*at)++; }
  static Pack load(const Pack* from) { return *from; }
  static void store(Pack* to, Pack pack) { *to = pack; }
  static void sync() {}
  // What the first of a block has seen all have seen.
  inline static bool any = false;
  static bool sync_or(bool flag) { return any = flag || (at_thread > 0 && any); }
};

// The first thread of a block first.
template <class Kernel>
void run_in_turn(Kernel kernel) {
  for (int& b = InTurn::at_block = 0; b < InTurn::kBlocks; ++b) {
    for (int& t = InTurn::at_thread = 0; t < InTurn::kThreads; ++t) kernel();
  }
}

// Runs a sequence of collectives on host threads and compares every output with the serial oracle, bit for bit.

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

inline plan::Problem problem_of(const Collected& one, int world) {
  plan::Problem problem = plan::testing::device_problem(one.kind, world, one.packs, one.dtype);
  problem.op = one.op;
  problem.root = one.root % world;
  problem.segment_bytes = one.segment_bytes;
  return problem;
}

inline Launch launch_of(const HostLayout& layout, const Collected& one) {
  const plan::Problem problem = problem_of(one, layout.world);
  Launch launch;
  launch.plans = plan::testing::device_plans(one.kind.algorithm, problem);
  launch.kernel = sum_kernel(one.dtype, layout.world);
  launch.divisor = one.op == ReduceOp::kAvg ? 3 : 0;  // no power of two
  launch.in_place =
      one.in_place && (one.kind.what == plan::Collective::kAllReduce || one.kind.what == plan::Collective::kReduce);
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

  uint64_t epoch = 0;                                    // launches that are over before the first
  std::function<void(Work&)> mutate = [](Work&) {};      // breaks what is about to run
  std::vector<Launch>& launches() { return launches_; }  // to be broken too; what is right was settled before

  // "" or what went wrong: the first outputs that differ, and who has given up.
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
      const Expired& expired = group.rank(r).expired;
      if (expired.set == 0) continue;
      wrong_ += "rank " + std::to_string(r) + " has given up in epoch " + std::to_string(expired.epoch) + ", step " +
                std::to_string(expired.step) + ", waiting for rank " + std::to_string(expired.peer) + "\n";
    }
    if (!group.buffers_are_whole()) wrong_ += "a buffer was left\n";
    return wrong_;
  }

 private:
  void look(HostGroup& group, int rank, int i) {
    const plan::Problem problem = problem_of(sequence_[i], layout_.world);
    const plan::DevicePlan& plan = launches_[i].plans[rank];
    const std::vector<char> right = expected(plan, inputs_[i], problem.root, launches_[i].divisor);
    if (plan::testing::has_output(plan, problem.root)) compare(i, plan, right, group.output(rank, i));
    // A caller does as it likes with its tensors now: who still reads them is found out.
    std::memset(group.input(rank, i), 0x5a, inputs_[i][rank].size());
  }

  void compare(int i, const plan::DevicePlan& plan, const std::vector<char>& right, const char* found) {
    const auto differs = [&](int64_t byte) { return right[byte] != found[byte]; };
    const int64_t bytes = right.size();
    int64_t first = 0, last = bytes - 1;
    while (first < bytes && !differs(first)) ++first;
    if (first == bytes) return;
    while (!differs(last)) --last;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (++wrong_outputs_ > kMostShown) return;
    wrong_ += "launch " + std::to_string(i) + " is wrong, bytes " + std::to_string(first) + " to " +
              std::to_string(last) + ": " + text_of(plan) + "\n";
  }

  const HostLayout layout_;
  const std::vector<Collected> sequence_;
  std::vector<Launch> launches_;
  std::vector<Inputs> inputs_;
  std::mutex mutex_;
  static constexpr int kMostShown = 3;
  int wrong_outputs_ = 0;
  std::string wrong_;
};

}  // namespace ringdp::gpu::testing
