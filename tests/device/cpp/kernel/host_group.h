// All ranks of a group on host threads: ranks x blocks x threads of them run launch after launch, as streams would.
//
// Ranks run ahead of one another as far as their plans let them; a rank's caller fills its input before a launch and
// looks at its output after it, on one of the rank's threads. Every buffer ends with a pack that nobody may touch.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "device/cpp/kernel/host_prim.h"
#include "device/plan/plan.h"

namespace ringdp::gpu::testing {

using RunKernel = void (*)(const Work&);

class Buffer {
 public:
  explicit Buffer(int64_t bytes) : packs_(bytes / kPackBytes + 1, kUntouched) {}
  char* bytes() { return reinterpret_cast<char*>(packs_.data()); }
  bool is_whole() const { return std::memcmp(&packs_.back(), &kUntouched, sizeof(Pack)) == 0; }

 private:
  static constexpr Pack kUntouched = {{0xfeedbeef, 0xfeedbeef, 0xfeedbeef, 0xfeedbeef}};
  std::vector<Pack> packs_;
};

// One collective: the plans of all ranks, and what runs their steps.
struct Launch {
  std::vector<plan::DevicePlan> plans;
  RunKernel kernel;
  double divisor = 0;
  bool in_place = false;
};

struct HostRank {
  // `first`: the number of its first thread.
  HostRank(HostClock* clock, int first, int blocks, int threads)
      : callers(clock, first, blocks * threads), flags(new Flags()) {
    for (int b = 0; b < blocks; ++b) {
      its_blocks.push_back(std::make_unique<HostBlock>(threads, clock, first + b * threads));
    }
  }
  ClockedBarrier callers;  // all its threads, between launches
  std::vector<std::unique_ptr<HostBlock>> its_blocks;
  std::unique_ptr<Flags> flags;
  Epoch epoch = {};
  Expired expired = {};
  uint32_t abort = 0;
  Work work = {};
};

struct HostLayout {
  int world = 2, blocks = 2, threads = 2;
  uint32_t seed = 1;
  Hostility hostility;
  uint64_t deadline_ns = 60'000'000'000;
  int left_out = -1;  // a rank that never comes
};

class HostGroup {
 public:
  HostGroup(const HostLayout& layout, std::vector<Launch> launches)
      : layout_(layout), launches_(std::move(launches)), clock_(layout.world * layout.blocks * layout.threads) {
    int64_t stage = 0, pushed = 0;
    for (const Launch& launch : launches_) {
      for (const plan::DevicePlan& plan : launch.plans) {
        stage = std::max(stage, plan.stage_bytes);
        pushed = std::max(pushed, plan.pushed_bytes);
      }
    }
    for (int r = 0; r < layout.world; ++r) {
      ranks_.push_back(std::make_unique<HostRank>(&clock_, number_of(r, 0, 0), layout.blocks, layout.threads));
      stages_.emplace_back(stage);
      words_.emplace_back(2 * layout.world * pushed / sizeof(MarkedWords));
      for (const Launch& launch : launches_) add_tensors(launch, r);
    }
    pushed_bytes_ = pushed;
  }

  // Called on a thread of rank `rank`, before and after launch `launch`.
  std::function<void(int rank, int launch)> before = [](int, int) {}, after = [](int, int) {};
  std::function<void(Work&)> mutate = [](Work&) {};  // what a test breaks on purpose

  void run() {
    const int of_rank = layout_.blocks * layout_.threads;
    for (int number = 0; number < layout_.world * of_rank; ++number) {
      if (number / of_rank != layout_.left_out) clock_.wake(number);
    }
    std::vector<std::thread> threads;
    for (int r = 0; r < layout_.world; ++r) {
      for (int b = 0; b < layout_.blocks && r != layout_.left_out; ++b) {
        for (int t = 0; t < layout_.threads; ++t) threads.emplace_back([this, r, b, t] { run_thread(r, b, t); });
      }
    }
    for (std::thread& thread : threads) thread.join();
  }

  char* input(int rank, int launch) { return tensors_[rank][launch].input.bytes(); }
  char* output(int rank, int launch) { return result_of(rank, launch).bytes(); }
  HostRank& rank(int r) { return *ranks_[r]; }
  void abort_all() {
    for (const auto& rank : ranks_) __atomic_store_n(&rank->abort, 1u, __ATOMIC_RELEASE);
  }

  bool buffers_are_whole() {
    bool whole = true;
    for (int r = 0; r < layout_.world; ++r) {
      whole = whole && stages_[r].is_whole();
      for (const Tensors& tensors : tensors_[r]) whole = whole && tensors.input.is_whole() && tensors.output.is_whole();
    }
    return whole;
  }

 private:
  struct Tensors {
    Buffer input, output;
  };

  void add_tensors(const Launch& launch, int rank) {
    const plan::DevicePlan& plan = launch.plans[rank];
    const int64_t size = size_of(plan.dtype);
    tensors_.resize(layout_.world);
    tensors_[rank].push_back({Buffer(plan.input * size), Buffer(plan.output * size)});
  }
  Buffer& result_of(int rank, int launch) {
    Tensors& tensors = tensors_[rank][launch];
    return launches_[launch].in_place ? tensors.input : tensors.output;
  }

  int number_of(int r, int b, int t) const { return (r * layout_.blocks + b) * layout_.threads + t; }

  void run_thread(int r, int b, int t) {
    HostThread thread;
    thread.thread = t;
    thread.threads = layout_.threads;
    thread.block = b;
    thread.clock = &clock_;
    thread.number = number_of(r, b, t);
    thread.its_block = ranks_[r]->its_blocks[b].get();
    thread.hostility = layout_.hostility;
    thread.random.seed(layout_.seed * 7919 + (r * 64 + b) * 64 + t + 1);
    this_thread = &thread;
    const bool is_caller = b == 0 && t == 0;
    for (int launch = 0; launch < static_cast<int>(launches_.size()); ++launch) {
      if (is_caller) {
        before(r, launch);
        describe(r, launch);
      }
      ranks_[r]->callers.arrive_and_wait(thread.number);
      launches_[launch].kernel(ranks_[r]->work);
      end_kernel(thread);
      ranks_[r]->callers.arrive_and_wait(thread.number);
      if (is_caller) after(r, launch);
    }
    clock_.sleep(thread.number);
  }

  // A kernel's end lets out all that its threads have stored.
  static void end_kernel(HostThread& thread) {
    for (const KeptStore& store : thread.kept) store.let_out();
    thread.kept.clear();
    thread.its_block->let_out();
  }

  void describe(int r, int launch) {
    const Launch& what = launches_[launch];
    const plan::DevicePlan& plan = what.plans[r];
    Work& work = ranks_[r]->work;
    work = {};
    work.rank = r;
    work.world = layout_.world;
    work.blocks = layout_.blocks;
    work.steps = static_cast<int32_t>(plan.steps.size());
    work.epoch = &ranks_[r]->epoch;
    work.deadline_ns = layout_.deadline_ns;
    work.divisor = what.divisor;
    for (int p = 0; p < layout_.world; ++p) {
      work.input[p] = input(p, launch);
      work.output[p] = output(p, launch);
      work.stage[p] = stages_[p].bytes();
      work.pushed[p] = reinterpret_cast<char*>(words_[p].data());
      work.flags[p] = ranks_[p]->flags.get();
    }
    work.pushed_bytes = pushed_bytes_;
    work.abort = &ranks_[r]->abort;
    work.expired = &ranks_[r]->expired;
    std::copy(plan.steps.begin(), plan.steps.end(), work.step);
    mutate(work);
  }

  const HostLayout layout_;
  const std::vector<Launch> launches_;
  HostClock clock_;
  std::vector<std::unique_ptr<HostRank>> ranks_;
  std::vector<Buffer> stages_;
  std::vector<std::vector<MarkedWords>> words_;
  std::vector<std::vector<Tensors>> tensors_;  // by rank and launch
  int64_t pushed_bytes_ = 0;
};

}  // namespace ringdp::gpu::testing
