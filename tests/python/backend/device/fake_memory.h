// Memory of the fake device: the host's. What is freed is overwritten once the streams that were recorded have come by.
#pragma once
#include <c10/core/Allocator.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>

#include "fake_streams.h"

namespace fake {

struct Block {
  explicit Block(size_t size) : bytes(size), memory(std::malloc(size + 1)) {}
  ~Block() {
    std::memset(memory, 0xDD, bytes);
    std::free(memory);
  }
  const size_t bytes;
  void* const memory;
  std::mutex mutex;  // guards streams
  std::set<int64_t> streams{current_stream};
};

using BlockPtr = std::shared_ptr<Block>;

inline void free_block(void* context) {
  const std::unique_ptr<BlockPtr> block(static_cast<BlockPtr*>(context));
  for (const int64_t id : (*block)->streams) stream(id).queue.push([keep = *block] {});
}

inline void record(const c10::DataPtr& memory, int64_t id) {
  if (memory.get_context() == nullptr) return;
  const BlockPtr& block = *static_cast<BlockPtr*>(memory.get_context());
  const std::lock_guard lock(block->mutex);
  block->streams.insert(id);
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* const block = new BlockPtr(std::make_shared<Block>(bytes));
    return {(*block)->memory, block, &free_block, c10::Device(c10::kPrivateUse1, 0)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace fake
