// What a rank tells the others of its device and its NCCL, where they share no memory.
//
// Plain bytes of one size, which travel through a collective of the host.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "device/runtime/library.h"
#include "device/runtime/peer_info.h"

namespace ringdp::gpu {

struct NcclPeerInfo {
  uint32_t build = 0;   // of this struct; equal where ranks can work together
  int32_t version = 0;  // of NCCL, e.g. 22907; 0: why_not says why this rank takes no part
  unsigned char uuid[16] = {};
  rd_gpu_nccl_id id = {};  // of the group to be; rank 0's counts
  char why_not[200] = {};
};

NcclPeerInfo nccl_peer_info_without(const std::string& why_not);

// Error(kMismatch) names the rank that was built from other sources.
std::vector<NcclPeerInfo> nccl_peer_infos_from(const std::vector<std::string>& bytes);

// Why these ranks cannot form a group of NCCL, or "": it takes a device for each, and one version.
std::string why_not(const std::vector<NcclPeerInfo>& infos);

// A rank's part of a group of NCCL: sends and receives in the order of a stream, and their end whatever happens.
//
// NCCL's kernels wait without end, and so does its first step; abort() ends the former, a deadline the latter.

// What NCCL says; or `late`: it has not come back in time.
class NcclFailure : public Error {
 public:
  NcclFailure(const std::string& what, bool is_late) : Error(ErrorKind::kInternal, "NCCL: " + what), late(is_late) {}
  const bool late;
};

class NcclCommunicator {
 public:
  struct Place {
    const rd_gpu_nccl_functions* nccl = nullptr;
    rd_gpu_nccl_id id = {};
    int rank = 0, world = 1;
  };
  // What joining uses meanwhile.
  struct Means {
    const Functions* functions = nullptr;
    void* stream = nullptr;                                         // of the device, on which nothing waits
    char* memory = nullptr;                                         // of the device: bytes_to_join(world)
    std::shared_ptr<const void> keeps;                              // that memory, for as long as NCCL may write there
    std::function<void(const std::function<void()>&)> with_device;  // runs it with the device as the current one
    std::function<void()> still_there;                              // throws when the group has failed
  };
  static int64_t bytes_to_join(int world);

  // Collective: returns once this rank has exchanged a message with every other, so that no later call connects and
  // waits. NCCL blocks there, on a thread of its own, which is left behind at the deadline. Throws NcclFailure, or what
  // still_there() throws.
  static std::unique_ptr<NcclCommunicator> join(const Place& place, const Means& means, Deadline deadline);

  NcclCommunicator(const rd_gpu_nccl_functions& nccl, rd_gpu_nccl_comm comm) : nccl_(nccl), comm_(comm) {}
  ~NcclCommunicator() { abort(); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  struct Message {
    bool sends = false;
    char* memory = nullptr;
    int64_t bytes = 0;
    int peer = 0;
  };
  // All of these side by side. "" or what NCCL says. After an end nothing is queued.
  std::string exchange(const std::vector<Message>& messages, void* stream);

  std::string failure();  // what has gone wrong since, "" if nothing; asks no thread that is busy

  // Ends what is under way, and everything later: any thread; may wait for the device.
  void abort();
  void leave();  // when nothing is under way

 private:
  std::string refused(const char* function, int result) const;

  const rd_gpu_nccl_functions& nccl_;
  std::mutex mutex_;  // held while messages are queued
  std::atomic<rd_gpu_nccl_comm> comm_;
};

}  // namespace ringdp::gpu
