// One rank's memory on its device, which its peers map, and the words through which device and host talk.
//
// Its parts lie at places that all ranks compute alike. Everything is zero at first. Not thread-safe.
#pragma once
#include <cstdint>
#include <memory>

#include "gpu/device/work.h"
#include "gpu/device_memory.h"

namespace ringdp::gpu {

struct ArenaLayout {
  int64_t window = 0;        // bytes of tensors under way; at 0
  int64_t stage_bytes = 0, pushed_bytes = 0;  // pushed: of one writer and one parity
  int64_t stage = 0, pushed = 0, flags = 0, epoch = 0, bytes = 0;  // where they begin; of all

  static ArenaLayout of(int64_t window_bytes, int world);
};

// Host memory that the device maps.
struct Signals {
  uint32_t checked;  // calls whose notes all ranks have compared, or that were given up; counted from 1
  uint32_t abort;    // not 0: the group is over
  Expired expired;
};

class Arena {
 public:
  // `sharing`: RD_GPU_SHARE_*. Error(kInternal) when the device has not so much memory.
  Arena(const Functions& functions, int device, const ArenaLayout& layout, int sharing);
  ~Arena();  // nobody may have it mapped any more
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  char* memory() const { return memory_->data(); }
  Signals& signals() const { return *signals_; }
  uint32_t* abort_on_device() const { return &on_device_->abort; }
  Expired* expired_on_device() const { return &on_device_->expired; }

  rd_gpu_handle handle(UniqueFd* fd) const { return memory_->handle(fd); }

 private:
  const Functions& functions_;
  std::unique_ptr<DeviceMemory> memory_;
  Signals *signals_ = nullptr, *on_device_ = nullptr;
};

}  // namespace ringdp::gpu
