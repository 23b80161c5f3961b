#include "device/runtime/launch.h"

#include <algorithm>

namespace ringdp::gpu {
namespace {

constexpr uint64_t kBeyond = uint64_t{1} << 62;  // greater than every epoch, also in the cyclic comparison of streams

}  // namespace

AdamWork adam_work_of(int rank, int world, const Addresses& addresses, const StepFacts& facts) {
  AdamWork work{};
  work.rank = rank;
  work.world = world;
  work.count = facts.count;
  work.divisor = facts.divisor;
  for (int r = 0; r < world; ++r) {
    work.gradients[r] = reinterpret_cast<float*>(addresses.window[r] + facts.at);
    work.parameters[r] = r == rank ? facts.parameters : facts.gives ? work.gradients[r] : nullptr;
  }
  std::copy_n(facts.state, 3, work.state);
  work.scalars = facts.scalars;
  work.abort = addresses.abort;
  work.epoch = addresses.epoch;
  return work;
}

Work work_of(const plan::DevicePlan& plan, const Addresses& addresses, const LaunchFacts& facts) {
  Work work{};
  work.rank = plan.rank;
  work.world = plan.world;
  work.blocks = facts.blocks;
  work.steps = static_cast<int32_t>(plan.steps.size());
  work.epoch = addresses.epoch;
  work.stream_epoch = facts.stream_epoch;
  work.captured = facts.captured ? 1 : 0;
  work.spans_devices = facts.spans_devices ? 1 : 0;
  work.deadline_ns = facts.deadline_ns;
  work.divisor = facts.divisor;
  for (int rank = 0; rank < plan.world; ++rank) {
    if (addresses.window[rank] == nullptr) continue;
    work.input[rank] = addresses.window[rank] + facts.input_at + rank * facts.input_stride;
    work.output[rank] = addresses.window[rank] + facts.output_at;
    work.stage[rank] = addresses.stage[rank];
    work.pushed[rank] = addresses.pushed[rank];
  }
  if (facts.own_input != nullptr) work.input[plan.rank] = facts.own_input;
  if (facts.own_output != nullptr) work.output[plan.rank] = facts.own_output;
  std::copy_n(addresses.flags, plan.world, work.flags);
  work.pushed_bytes = addresses.pushed_bytes;
  work.abort = addresses.abort;
  std::copy_n(addresses.aborts, plan.world, work.aborts);
  work.expired = addresses.expired;
  std::copy(plan.steps.begin(), plan.steps.end(), work.step);
  return work;
}

std::optional<Expired> waited_for(const Launched& launch, const Flags& flags) {
  const std::vector<plan::DeviceStep>& steps = launch.plan->steps;
  for (size_t s = 0; s < steps.size(); ++s) {
    const plan::DeviceStep& step = steps[s];
    if (step.verb != plan::DeviceVerb::kAwait) continue;
    const uint64_t wanted = stream_value(launch.epoch, step);
    const uint64_t seen = __atomic_load_n(&flags.of[step.slot][0][step.peer].value, __ATOMIC_ACQUIRE);
    if (seen >= wanted) continue;
    const int at = static_cast<int>(s);
    return Expired{2, launch.plan->rank, 0, at, step.peer, step.slot, launch.epoch, wanted, seen, launch.epoch};
  }
  return std::nullopt;
}

void release_waits(Flags& flags) {
  for (auto& slot : flags.of) {
    for (Flag& flag : slot[0]) __atomic_store_n(&flag.value, kBeyond, __ATOMIC_RELEASE);
  }
}

}  // namespace ringdp::gpu
