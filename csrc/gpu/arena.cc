#include "gpu/arena.h"

#include <algorithm>

#include "base/bytes.h"
#include "plan/device_select.h"

namespace ringdp::gpu {
namespace {

constexpr int64_t kLine = 128;                    // bytes: what flags are aligned to
constexpr int64_t kLeastStage = int64_t{4} << 20;  // bytes: one-shot sums of two ranks, ring segments of more

int64_t stage_for(int64_t window_bytes) { return std::min(std::max(window_bytes / 8, kLeastStage), window_bytes); }

}  // namespace

ArenaLayout ArenaLayout::of(int64_t window_bytes, int world) {
  ArenaLayout layout;
  layout.window = align_up(window_bytes, kLine);
  layout.stage_bytes = align_up(stage_for(window_bytes), kLine);
  plan::DeviceTopology topology;
  topology.world = world;
  layout.pushed_bytes = align_up(2 * plan::push_limit(topology), kLine);
  layout.stage = layout.window;
  layout.pushed = layout.stage + layout.stage_bytes;
  layout.flags = layout.pushed + 2 * world * layout.pushed_bytes;
  layout.epoch = layout.flags + static_cast<int64_t>(sizeof(Flags));
  layout.bytes = layout.epoch + align_up(sizeof(Epoch), kLine);
  return layout;
}

Arena::Arena(const Functions& functions, int device, const ArenaLayout& layout, int sharing)
    : functions_(functions), memory_(std::make_unique<DeviceMemory>(functions, device, layout.bytes, sharing)) {
  void *host = nullptr, *on_device = nullptr;
  require(functions, functions.host_alloc(sizeof(Signals), &host, &on_device));
  signals_ = static_cast<Signals*>(host);
  on_device_ = static_cast<Signals*>(on_device);
}

Arena::~Arena() { functions_.host_free(signals_); }

}  // namespace ringdp::gpu
