#include <vector>

#include "plan/device_builder.h"
#include "plan/device_texts.h"

namespace ringdp::plan {
namespace {

// Stores instead of loads: they need not wait for an answer, and only what is written must be reachable.
class DeviceMoves {
 public:
  DeviceMoves(const DeviceProblem& problem, int64_t input, int64_t output)
      : problem_(problem), rank_(problem.rank), world_(problem.world), builder_("direct", problem, input, output) {}

  DevicePlan build() {
    switch (problem_.what) {
      case Collective::kBroadcast: broadcast(); break;
      case Collective::kAllGather: all_gather(); break;
      case Collective::kAllToAll: all_to_all(); break;
      default: builder_.meet_all(kEntrySlot); break;  // a barrier
    }
    return builder_.finish();
  }

 private:
  // The slice that `receiver` gets from the root and hands on: so the root sends every element once.
  Extent slice(int receiver) const {
    const int index = wrap(receiver - problem_.root - 1, world_);
    return balanced_part(problem_.count, world_ - 1, index, pack_elements(problem_.dtype));
  }

  // The root awaits everybody before it sends, so whoever has its slice knows that all have entered.
  void broadcast() {
    const std::vector<int> receivers = all_but_root();
    if (rank_ != problem_.root) return hand_on(receivers);
    for (const int receiver : receivers) builder_.await(receiver, kEntrySlot);
    for (const int receiver : receivers) {
      const Extent part = slice(receiver);
      builder_.copy(DeviceBuilder::input(part.begin), DeviceBuilder::output(part.begin, receiver), part.count());
      builder_.post(receiver, kDownSlot);
    }
  }
  void hand_on(const std::vector<int>& receivers) {
    const Extent part = slice(rank_);
    builder_.post(problem_.root, kEntrySlot);
    builder_.await(problem_.root, kDownSlot);
    for (const int peer : receivers) {
      builder_.copy(DeviceBuilder::output(part.begin), DeviceBuilder::output(part.begin, peer), part.count());
    }
    builder_.meet(kExitSlot, receivers);
  }

  // Other than this rank and the root, beginning with the next.
  std::vector<int> all_but_root() const {
    std::vector<int> ranks;
    for (int k = 1; k < world_; ++k) {
      const int peer = wrap(rank_ + k, world_);
      if (peer != problem_.root) ranks.push_back(peer);
    }
    return ranks;
  }

  void all_gather() {
    builder_.meet_all(kEntrySlot);
    builder_.copy(DeviceBuilder::input(0), DeviceBuilder::output(rank_ * problem_.count, kEverybody), problem_.count);
    builder_.meet_all(kExitSlot);
  }

  void all_to_all() {
    builder_.meet_all(kEntrySlot);
    for (int k = 0; k < world_; ++k) {
      const int peer = wrap(rank_ + k, world_);
      builder_.copy(DeviceBuilder::input(peer * problem_.count),
                    DeviceBuilder::output(rank_ * problem_.count, peer), problem_.count);
    }
    builder_.meet_all(kExitSlot);
  }

  const DeviceProblem& problem_;
  const int rank_, world_;
  DeviceBuilder builder_;
};

}  // namespace

DevicePlan device_moves(const DeviceProblem& problem) {
  const int64_t all = problem.count * problem.world;
  switch (problem.what) {
    case Collective::kBroadcast: return DeviceMoves(problem, problem.count, problem.count).build();
    case Collective::kAllGather: return DeviceMoves(problem, problem.count, all).build();
    case Collective::kAllToAll: return DeviceMoves(problem, all, all).build();
    default: return DeviceMoves(problem, 0, 0).build();
  }
}

}  // namespace ringdp::plan
