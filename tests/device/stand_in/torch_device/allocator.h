// Tensors' memory: the stand-in's device memory, kept for later tensors as torch's allocator for CUDA keeps it.
//
// What is freed is overwritten once the streams that were recorded have come by, and only then given to others.
#pragma once
#include <c10/core/Allocator.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "stand_in/memory.h"
#include "streams.h"

namespace stand_in {

class Cache {
 public:
  void* take(int device, size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      auto& fitting = unused_[{device, bytes}];
      if (!fitting.empty()) {
        void* const memory = fitting.back();
        fitting.pop_back();
        return memory;
      }
    }
    return allocate(device, bytes);
  }
  void give_back(int device, size_t bytes, void* memory) {
    const std::lock_guard lock(mutex_);
    unused_[{device, bytes}].push_back(memory);
  }

 private:
  std::mutex mutex_;  // guards unused_
  std::map<std::pair<int, size_t>, std::vector<void*>> unused_;
};

inline Cache& cache() {
  static auto* const instance = new Cache;
  return *instance;
}

// To powers of two, at least a page, so that few sizes are asked for.
inline size_t rounded(size_t bytes) {
  size_t block = 4096;
  while (block < bytes) block *= 2;
  return block;
}

struct Block {
  Block(int on, size_t size)
      : device(on), bytes(rounded(size)), memory(cache().take(on, bytes)), streams{&current_stream(on)} {}
  ~Block() {
    std::memset(memory, 0xDD, bytes);
    cache().give_back(device, bytes, memory);
  }
  const int device;
  const size_t bytes;
  void* const memory;
  std::mutex mutex;  // guards streams
  std::set<Stream*> streams;
};
using BlockPtr = std::shared_ptr<Block>;

inline void free_block(void* context) {
  const std::unique_ptr<BlockPtr> block(static_cast<BlockPtr*>(context));
  for (Stream* const stream : (*block)->streams) stream->push([keep = *block] {});
}

inline void record_use(const c10::DataPtr& memory, Stream& stream) {
  if (memory.get_deleter() != &free_block) return;  // somebody else's memory, as torch's allocator for CUDA has it
  const BlockPtr& block = *static_cast<BlockPtr*>(memory.get_context());
  const std::lock_guard lock(block->mutex);
  block->streams.insert(&stream);
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const int device = torch_device();
    auto* const block = new BlockPtr(std::make_shared<Block>(device, bytes));
    const c10::Device its(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device));
    return {(*block)->memory, block, &free_block, its};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace stand_in
