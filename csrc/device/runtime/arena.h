// Pages of host memory that all ranks of a host share, one rank's each: STREAM's flags, which a watchdog can end, and
// who has unmapped whose device memory.
//
// They lie in the ranks' heaps (transport/heap.h), which all map. Thread-safe after construction.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/kernel/work.h"
#include "device/runtime/library.h"
#include "device/runtime/segments.h"
#include "transport/heap.h"

namespace ringdp::gpu {

struct HostPage {
  Flags flags;
  uint32_t abort;                            // not 0: results of this rank's device from now on are void
  uint32_t unmapped[plan::kMaxDeviceRanks];  // by peer: 1 once it has unmapped this rank's device memory
};

// This rank's page, taken from its heap.
class OwnPage {
 public:
  // Error(kInvalidArgument) when the heap is full or closed. `base`: where the heap begins in this process.
  OwnPage(std::shared_ptr<transport::Heap> heap, const std::byte* base);
  ~OwnPage();
  OwnPage(const OwnPage&) = delete;
  OwnPage& operator=(const OwnPage&) = delete;

  int64_t offset() const { return offset_; }  // in the heap, whole pages
  HostPage& page() const { return *page_; }
  static int64_t bytes();

 private:
  const std::shared_ptr<transport::Heap> heap_;
  std::byte* block_;
  HostPage* page_;
  int64_t offset_;
};

// Everybody's pages as this rank's device reaches them.
class MappedPages {
 public:
  MappedPages(const Functions& functions, const std::vector<HostPage*>& pages);  // by rank; Error(kInternal)
  ~MappedPages();
  MappedPages(const MappedPages&) = delete;
  MappedPages& operator=(const MappedPages&) = delete;

  HostPage* on_device(int rank) const { return on_device_[static_cast<size_t>(rank)]; }

 private:
  void unmap();

  const Functions& functions_;
  std::vector<HostPage*> mapped_;
  std::vector<HostPage*> on_device_;
};

// One rank's memory on its device, which its peers map, and the words through which device and host talk.
//
// Its parts lie at places that all ranks compute alike. Everything is zero at first. Not thread-safe.
struct ArenaLayout {
  int64_t window = 0;                                              // bytes of tensors under way; at 0
  int64_t stage_bytes = 0, pushed_bytes = 0;                       // pushed: of one writer and one parity
  int64_t stage = 0, pushed = 0, flags = 0, epoch = 0, bytes = 0;  // where they begin; of all

  static ArenaLayout of(int64_t window_bytes, int world);
};

// Host memory that the device maps.
struct Signals {
  uint32_t checked;  // calls whose notes all ranks have compared, or that were aborted; counted from 1
  uint32_t abort;    // not 0: the group is over
  Expired expired;
};

class Arena {
 public:
  // `sharing`: RD_GPU_SHARE_*. Error(kInternal) when the device has not so much memory.
  Arena(const Functions& functions, int device, const ArenaLayout& layout, int sharing);
  ~Arena();  // no peer may have it mapped any more
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
