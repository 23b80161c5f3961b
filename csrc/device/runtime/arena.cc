#include "device/runtime/arena.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/bytes.h"
#include "device/plan/select.h"

namespace ringdp::gpu {
namespace {

constexpr int64_t kPageBytes = 4096;  // a device maps whole pages

constexpr int64_t kLine = 128;                     // bytes: the alignment of flags
constexpr int64_t kLeastStage = int64_t{4} << 20;  // bytes: one-shot sums of two ranks, ring segments of more

int64_t stage_for(int64_t window_bytes) { return std::min(std::max(window_bytes / 8, kLeastStage), window_bytes); }

}  // namespace

int64_t OwnPage::bytes() { return align_up(sizeof(HostPage), kPageBytes); }

OwnPage::OwnPage(std::shared_ptr<transport::Heap> heap, const std::byte* base, std::shared_ptr<const void> mappings)
    : mappings_(std::move(mappings)), heap_(std::move(heap)), block_(heap_->take(bytes() + kPageBytes)) {
  heap_->forbid_adoption();
  offset_ = align_up(block_ - base, kPageBytes);
  std::byte* const start = block_ + (offset_ - (block_ - base));
  std::memset(start, 0, static_cast<size_t>(bytes()));  // the heap may have used the block before
  page_ = new (start) HostPage;
  static_assert(std::is_trivially_default_constructible_v<HostPage>, "the zeros stay");
}

OwnPage::~OwnPage() { heap_->release(block_); }

MappedPages::MappedPages(const Functions& functions, const std::vector<HostPage*>& pages) : functions_(functions) {
  for (HostPage* const page : pages) {
    void* on_device = nullptr;
    if (const int result = functions.host_map(page, static_cast<size_t>(OwnPage::bytes()), &on_device); result != 0) {
      const std::string sentence = functions.error();
      unmap();
      throw Error(ErrorKind::kInternal, "CUDA: " + sentence);
    }
    mapped_.push_back(page);
    on_device_.push_back(static_cast<HostPage*>(on_device));
  }
}

MappedPages::~MappedPages() { unmap(); }

void MappedPages::unmap() {
  for (HostPage* const page : mapped_) functions_.host_unmap(page);
}

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
