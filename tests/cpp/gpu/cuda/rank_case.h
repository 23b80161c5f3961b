// What ranks over the stand-in run, where it lies in their memory, and how they tell each other of it.
#pragma once
#include <sys/mman.h>

#include <vector>

#include "gpu/cuda/stand_in.h"
#include "gpu/device/host_case.h"

namespace ringdp::gpu::testing {

struct RankCase {
  int world = 2;
  plan::DeviceAlgorithm algorithm = plan::DeviceAlgorithm::kDirect;
  plan::Collective what = plan::Collective::kAllReduce;
  DType dtype = DType::kF32;
  int64_t packs = 37;
  int executor = RD_GPU_SPIN, sharing = RD_GPU_SHARE_AUTO;
  bool one_device = false;  // else each rank takes the next of two
  int launches = 3, blocks = 1;
  uint64_t deadline_ns = 30'000'000'000;
};

struct Share {
  rd_gpu_handle handle;
  int fd;
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual std::vector<Share> all(const Share& mine) = 0;  // by rank; descriptors are the receiver's
  virtual void meet() = 0;
};

// Where everything lies in a rank's memory.
struct RankLayout {
  explicit RankLayout(const plan::DevicePlan& plan) {
    const size_t size = size_of(plan.dtype);
    flags = take(sizeof(Flags));
    epoch = take(sizeof(Epoch));
    stage = take(plan.stage_bytes);
    pushed = take(2 * plan.world * plan.pushed_bytes);
    input = take(plan.input * size);
    output = take(plan.output * size);
  }
  size_t flags, epoch, stage, pushed, input, output, bytes = 0;

 private:
  size_t take(size_t wanted) {
    const size_t at = bytes;
    bytes += (wanted + 4095) / 4096 * 4096;
    return at;
  }
};

// The flags of STREAM, of all ranks: host memory that all of them map. One per process.
class StreamFlags {
 public:
  static constexpr size_t kBytes = plan::kMaxDeviceRanks * sizeof(Flags);

  // `fd`: the file that all processes of a group map; -1: memory of this process.
  explicit StreamFlags(int fd = -1) {
    void* const at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
    if (at == MAP_FAILED) throw std::runtime_error("mmap");
    host = static_cast<Flags*>(at);
    void* mapped = nullptr;
    succeed(gpu().host_map(host, kBytes, &mapped));
    device = static_cast<Flags*>(mapped);
  }
  ~StreamFlags() {
    gpu().host_unmap(host);
    munmap(host, kBytes);
  }
  StreamFlags(const StreamFlags&) = delete;
  StreamFlags& operator=(const StreamFlags&) = delete;

  Flags *host = nullptr, *device = nullptr;  // by rank
};

}  // namespace ringdp::gpu::testing
