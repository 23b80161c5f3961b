// The fake device as ringdp stages its tensors.
#pragma once
#include <cstdlib>
#include <cstring>
#include <map>

#include "backend/device/device_core.h"
#include "fake_streams.h"

namespace fake {

class Core final : public ringdp::backend::DeviceCore {
 public:
  void* allocate(size_t bytes) override {
    void* const memory = std::aligned_alloc(4096, bytes);
    std::memset(memory, 0, bytes);
    const std::lock_guard lock(mutex_);
    pinned_[memory] = bytes;
    return memory;
  }
  void release(void* memory) noexcept override {
    const std::lock_guard lock(mutex_);
    std::memset(memory, 0xDD, pinned_.at(memory));
    pinned_.erase(memory);
    std::free(memory);
  }
  size_t pinned_bytes() {
    const std::lock_guard lock(mutex_);
    size_t bytes = 0;
    for (const auto& [memory, size] : pinned_) bytes += size;
    return bytes;
  }

  void copy(void* to, const void* from, size_t bytes, void* on) override {
    push(on, [=] { std::memcpy(to, from, bytes); });
  }
  // As CUDA may: one thread runs the functions of all streams, so one that waited would hold up all.
  void call(void* on, void (*function)(void*), void* argument) override {
    push(on, [this, function, argument] {
      const auto over = std::make_shared<Latch>();
      functions_.push([=] {
        function(argument);
        over->open();
      });
      over->wait();
    });
  }
  void await(void* on, const uint32_t* word) override {
    push(on, [word] {
      while (static_cast<int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - 1) < 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
  }
  bool is_capturing(void* on) override { return static_cast<Stream*>(on)->capturing; }

 private:
  static void push(void* on, Job job) { static_cast<Stream*>(on)->queue.push(std::move(job)); }

  Queue functions_;
  std::mutex mutex_;  // guards pinned_
  std::map<void*, size_t> pinned_;
};

inline Core& core() {
  static Core* const instance = new Core;
  return *instance;
}

}  // namespace fake
