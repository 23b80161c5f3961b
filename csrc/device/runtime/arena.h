// Host memory that all ranks of a host share, one page per rank: STREAM's flags, whose waits a watchdog can end, the
// abort word, and which peers have unmapped the rank's device memory.
//
// The pages are in the ranks' heaps (transport/heap.h). Thread-safe after construction.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/kernel/work.h"
#include "device/runtime/library.h"
#include "device/runtime/signature.h"
#include "device/runtime/symmetric_buffers.h"
#include "transport/heap.h"

namespace ringdp::gpu {

struct HostPage {
  Flags flags;
  uint32_t abort;                            // not 0: this rank has aborted, and its later results are NaN
  uint32_t unmapped[plan::kMaxDeviceRanks];  // by peer: 1 once it has unmapped this rank's device memory
};

// This rank's page, taken from its heap. Peers write to it at any time, so no other group ever adopts that heap.
class OwnPage {
 public:
  // Error(kInvalidArgument) when the heap is full or closed. `base`: the heap's address in this process. `mappings`: of
  // all ranks' heaps, which live as long as this.
  OwnPage(std::shared_ptr<transport::Heap> heap, const std::byte* base, std::shared_ptr<const void> mappings);
  ~OwnPage();
  OwnPage(const OwnPage&) = delete;
  OwnPage& operator=(const OwnPage&) = delete;

  int64_t offset() const { return offset_; }  // in the heap, whole pages
  HostPage& page() const { return *page_; }
  static int64_t bytes();

 private:
  const std::shared_ptr<const void> mappings_;
  const std::shared_ptr<transport::Heap> heap_;
  std::byte* block_;
  HostPage* page_;
  int64_t offset_;
};

// The pages of all ranks, mapped on this rank's device.
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

// One rank's device memory, which its peers map, and host memory through which the device and its host communicate.
//
// The layout is the same on all ranks. Everything is zero-filled. Not thread-safe.
struct ArenaLayout {
  int64_t window = 0;                                              // bytes of staged tensors; at offset 0
  int64_t stage_bytes = 0, pushed_bytes = 0;                       // pushed: per writer and epoch parity
  int64_t stage = 0, pushed = 0, flags = 0, epoch = 0, bytes = 0;  // offsets; `bytes`: of all

  static ArenaLayout of(int64_t window_bytes, int world);
};

// Host memory that the device maps.
struct Signals {
  uint32_t released;  // the last call, from 1, whose headers all ranks have compared, or that was aborted
  uint32_t abort;     // not 0: the group has failed or ended
  uint32_t turn;      // the last call to which the stream has come
  Expired expired;
  Signature signature;  // copied to and from devices while the ranks meet
};

class Arena {
 public:
  // `sharing`: RD_GPU_SHARE_*. Error(kInternal) when the device is out of memory.
  Arena(const Functions& functions, int device, const ArenaLayout& layout, int sharing);
  ~Arena();  // precondition: no peer has it mapped any more
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
