// Device memory that peers can map. It is freed only when no peer has it mapped any more.
#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "device/runtime/bootstrap.h"
#include "device/runtime/library.h"
#include "device/runtime/peer_info.h"

namespace ringdp::gpu {

class DeviceMemory {
 public:
  // Zero-filled. `sharing`: RD_GPU_SHARE_*. Error(kInternal) when the device is out of memory.
  DeviceMemory(const Functions& functions, int device, int64_t bytes, int sharing);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  char* data() const { return data_; }
  rd_gpu_handle handle(UniqueFd* fd) const;  // sets `fd` when the handle needs a descriptor

 private:
  const Functions& functions_;
  char* data_ = nullptr;
};

// A place in a symmetric buffer, the same on all ranks.
struct BufferRef {
  int64_t number = 0;  // of the buffer, from 1 in the order of allocation; 0: none
  int64_t at = 0;      // offset in bytes
};

// Device memory of equal size on every rank, in which collectives run on tensors without copies.
//
// Either all ranks get a buffer, or none does and why_not() says why on all. It is freed when no rank uses its memory
// any more, which a collective call finds out: importers close before exporters free. Collective calls are made by one
// thread at a time, the others by any thread.
class SymmetricBuffers {
 public:
  // `sharing`: the mode in which the ranks' arenas were mapped. `why_never`: why this rank cannot share any, or "".
  SymmetricBuffers(const Functions& functions, int device, int rank, int sharing, std::string why_never);

  // Collective; reclaims first. Returns this rank's zero-filled memory of a new buffer, which the rank uses until it
  // drops the pointer; or null on all ranks, see why_not(). Error(kMismatch) when ranks ask for different numbers of
  // bytes. Throws what all_gather() throws.
  std::shared_ptr<DeviceMemory> make(int64_t bytes, const BootstrapContext& context);
  // Collective: frees the buffers that no rank uses any more.
  void reclaim(const BootstrapContext& context);

  // The place of these bytes, if one buffer holds them to the end of their last pack.
  std::optional<BufferRef> find(const void* memory, int64_t bytes) const;
  bool holds(const void* memory) const;                        // whether it points into one
  std::vector<char*> addresses(int64_t number) const;          // by rank; the buffer must exist
  std::shared_ptr<DeviceMemory> memory(int64_t number) const;  // of this rank; a copy keeps the buffer alive

  int64_t bytes() const;  // of all segments of this rank
  size_t count() const;
  std::string why_not() const;  // of the last buffer that could not be allocated, or ""

  void unmap();  // unmaps the peers' memory; no launch may follow

 private:
  struct Buffer {
    int64_t number = 0, bytes = 0;
    std::shared_ptr<DeviceMemory> own;
    std::vector<char*> memory;  // by rank
  };
  using Place = std::list<Buffer>::iterator;

  PeerInfo offer(Buffer& buffer, const BootstrapContext& context, UniqueFd* fd) const;
  std::string map(Buffer& buffer, const std::vector<PeerInfo>& infos, const std::vector<UniqueFd>& fds) const;
  void unmap(Buffer& buffer) const;
  const Buffer& numbered(int64_t number) const;
  std::shared_ptr<DeviceMemory> refuse(Place place, const std::string& why);
  std::vector<Place> unused(const BootstrapContext& context);

  const Functions& functions_;
  const int device_, rank_, sharing_;
  const std::string why_never_;

  mutable std::mutex mutex_;  // guards the rest; only collective calls change the elements
  std::list<Buffer> buffers_;
  int64_t made_ = 0;
  std::string why_not_;
};

}  // namespace ringdp::gpu
