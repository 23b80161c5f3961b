// Memory of a rank's device that its peers can map. It is freed only when no peer has it mapped any more.
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
  // Zero at first. `sharing`: RD_GPU_SHARE_*. Error(kInternal) when the device has not so much.
  DeviceMemory(const Functions& functions, int device, int64_t bytes, int sharing);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  char* data() const { return data_; }
  rd_gpu_handle handle(UniqueFd* fd) const;  // `fd` holds one afterwards when the handle needs it

 private:
  const Functions& functions_;
  char* data_ = nullptr;
};

// Memory beside the arenas, in which collectives run on tensors where they lie: segments, as many bytes on every rank.
//
// All ranks make a segment together, or none has it and all know why. One ends once no rank holds its memory any more,
// which they find out together: importers close before exporters free. What is collective, by one thread at a time;
// looking, by any.

// Where tensors of a collective lie on all ranks alike.
struct SegmentRef {
  int64_t number = 0;  // from 1, as segments were made; 0: in no segment
  int64_t at = 0;      // bytes from where it begins
};

class Segments {
 public:
  // `sharing`: with which the ranks' arenas could be mapped. `why_never`: what keeps this rank from offering any, or
  // "".
  Segments(const Functions& functions, int device, int rank, int sharing, std::string why_never);

  // Collective; first reclaims. This rank's memory of a new segment, zero at first, whose end says that the rank needs
  // it no more; or null on all ranks, see why_not(). Error(kMismatch) when ranks ask for different numbers of bytes.
  // Throws what all_gather() throws.
  std::shared_ptr<DeviceMemory> make(int64_t bytes, const BootstrapContext& context);
  // Collective: gives back what no rank holds any more.
  void reclaim(const BootstrapContext& context);

  // The segment that holds these bytes, all of its last pack included; nothing where none does.
  std::optional<SegmentRef> find(const void* memory, int64_t bytes) const;
  bool holds(const void* memory) const;                        // whether it begins in one
  std::vector<char*> addresses(int64_t number) const;          // by rank, of a segment that is there
  std::shared_ptr<DeviceMemory> memory(int64_t number) const;  // of such a one; a copy keeps the segment

  int64_t bytes() const;  // of all segments of this rank
  size_t count() const;
  std::string why_not() const;  // of the latest that could not be made; or ""

  void unmap();  // unmaps the others' memory. No launch after it

 private:
  struct Segment {
    int64_t number = 0, bytes = 0;
    std::shared_ptr<DeviceMemory> own;
    std::vector<char*> memory;  // by rank
  };
  using Place = std::list<Segment>::iterator;

  PeerInfo offer(Segment& segment, const BootstrapContext& context, UniqueFd* fd) const;
  std::string map(Segment& segment, const std::vector<PeerInfo>& infos, const std::vector<UniqueFd>& fds) const;
  void unmap(Segment& segment) const;
  const Segment& numbered(int64_t number) const;
  std::shared_ptr<DeviceMemory> refuse(Place place, const std::string& why);
  std::vector<Place> unused(const BootstrapContext& context);

  const Functions& functions_;
  const int device_, rank_, sharing_;
  const std::string why_never_;

  mutable std::mutex mutex_;  // guards the rest, whose elements only collective calls change
  std::list<Segment> segments_;
  int64_t made_ = 0;
  std::string why_not_;
};

}  // namespace ringdp::gpu
