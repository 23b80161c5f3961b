#include "gpu/stream_flags.h"

namespace ringdp::gpu {
namespace {

constexpr uint64_t kBeyond = uint64_t{1} << 62;  // every epoch, also for streams, which compare cyclically

}  // namespace

std::optional<Expired> waited_for(const Work& work, const Flags& flags) {
  for (int s = 0; s < work.steps; ++s) {
    const plan::DeviceStep& step = work.step[s];
    if (step.verb != plan::DeviceVerb::kAwait) continue;
    const uint64_t wanted = stream_value(work, step);
    const uint64_t seen = __atomic_load_n(&flags.of[step.slot][0][step.peer].value, __ATOMIC_ACQUIRE);
    if (seen >= wanted) continue;
    const uint64_t launch = work.stream_epoch;
    return Expired{2, work.rank, 0, s, step.peer, step.slot, launch, wanted, seen, launch};
  }
  return std::nullopt;
}

void release_waits(Flags& flags) {
  for (auto& slot : flags.of) {
    for (Flag& flag : slot[0]) __atomic_store_n(&flag.value, kBeyond, __ATOMIC_RELEASE);
  }
}

}  // namespace ringdp::gpu
