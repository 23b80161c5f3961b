#include "backend/device/pinned.h"

#include <ATen/ATen.h>

#include <map>
#include <mutex>
#include <vector>

namespace ringdp::backend {
namespace {

constexpr size_t kSmallestBlock = 4096;  // bytes: a page

size_t block_of(size_t bytes) {
  size_t block = kSmallestBlock;
  while (block < bytes) block *= 2;
  return block;
}

}  // namespace

struct PinnedCache::Blocks {
  explicit Blocks(DeviceCore& device) : core(device) {}
  ~Blocks() { free_down_to(0); }

  void* take(size_t block) {
    {
      const std::lock_guard lock(mutex);
      auto& fitting = unused[block];
      if (!fitting.empty()) {
        void* const memory = fitting.back();
        fitting.pop_back();
        unused_bytes -= block;
        return memory;
      }
    }
    return core.allocate(block);
  }

  void give_back(void* memory, size_t block) {
    const std::lock_guard lock(mutex);
    unused[block].push_back(memory);
    unused_bytes += block;
  }

  // Largest first: few calls need them, and they are most of the memory.
  void free_down_to(size_t bytes) {
    const std::lock_guard lock(mutex);
    for (auto size = unused.rbegin(); size != unused.rend(); ++size) {
      while (unused_bytes > bytes && !size->second.empty()) {
        core.release(size->second.back());
        size->second.pop_back();
        unused_bytes -= size->first;
      }
    }
  }

  DeviceCore& core;
  std::mutex mutex;  // guards the next two
  std::map<size_t, std::vector<void*>> unused;  // by their size
  size_t unused_bytes = 0;
};

PinnedCache::PinnedCache(DeviceCore& core) : blocks_(std::make_shared<Blocks>(core)) {}

at::Tensor PinnedCache::empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  const size_t block = block_of(c10::multiply_integers(sizes) * c10::elementSize(dtype));
  void* const memory = blocks_->take(block);
  const auto give_back = [blocks = blocks_, block](void* used) { blocks->give_back(used, block); };
  return at::from_blob(memory, sizes, give_back, at::TensorOptions().dtype(dtype));
}

void PinnedCache::trim() { blocks_->free_down_to(kKeptPinned); }

}  // namespace ringdp::backend
