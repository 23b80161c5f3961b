// Pages of host memory that all ranks of a host share, one rank's each: STREAM's flags, which a watchdog can end, and who
// has let go of whose device memory.
//
// They lie in the ranks' heaps (transport/heap.h), which all map. Thread-safe after construction.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gpu/device/work.h"
#include "gpu/library.h"
#include "transport/heap.h"

namespace ringdp::gpu {

struct HostPage {
  Flags flags;
  uint32_t abort;                          // not 0: results of this rank's device from now on are void
  uint32_t parted[plan::kMaxDeviceRanks];  // by peer: 1 once it has unmapped this rank's device memory
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

}  // namespace ringdp::gpu
