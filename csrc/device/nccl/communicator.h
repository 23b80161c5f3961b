// An NCCL communicator of ranks that share no memory, with a deadline for joining it and an end whatever happens.
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

// What a rank tells the others about its device and its NCCL, as bytes through a collective on the host.
struct NcclPeerInfo {
  uint32_t build = 0;   // of this struct; must be equal on all ranks
  int32_t version = 0;  // of NCCL, e.g. 22907; 0: NCCL cannot be used here, see why_not
  unsigned char uuid[16] = {};
  rd_gpu_nccl_id id = {};  // of the communicator; only rank 0's is used
  char why_not[200] = {};
};

NcclPeerInfo nccl_peer_info_without(const std::string& why_not);

// Error(kMismatch) names the rank that was built from other sources.
std::vector<NcclPeerInfo> nccl_peer_infos_from(const std::vector<std::string>& bytes);

// Why these ranks cannot form a communicator, or "": each needs its own device, and all the same version.
std::string why_not(const std::vector<NcclPeerInfo>& infos);

// An error of NCCL; `late`: it has not returned by the deadline.
class NcclFailure : public Error {
 public:
  NcclFailure(const std::string& what, bool is_late) : Error(ErrorKind::kInternal, "NCCL: " + what), late(is_late) {}
  const bool late;
};

// Calls the function with the device as the current one.
using WithDevice = std::function<void(const std::function<void()>&)>;

// Sends and receives in the order of a stream.
//
// NCCL has no timeouts: abort() ends its kernels, and join() stops waiting at a deadline.
class NcclCommunicator {
 public:
  struct Place {
    const rd_gpu_nccl_functions* nccl = nullptr;
    rd_gpu_nccl_id id = {};
    int rank = 0, world = 1;
  };
  // What the joining thread uses.
  struct Means {
    const Functions* functions = nullptr;
    void* stream = nullptr;             // of the device; no work on it may wait for other ranks
    char* memory = nullptr;             // of the device, bytes_to_join(world)
    std::shared_ptr<const void> keeps;  // keeps `memory` alive while NCCL may write to it
    WithDevice with_device;
    std::function<void()> still_there;  // throws when the group has failed
  };
  static int64_t bytes_to_join(int world);

  // Collective: returns when this rank has exchanged a message with every peer, so that no later call has to connect.
  // NCCL blocks in this, so it runs on a thread of its own, which is abandoned at the deadline. Throws NcclFailure, or
  // what still_there() throws.
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
  // Queues all messages as one NCCL group. Returns "" or NCCL's error. After abort() or leave() it does nothing.
  std::string exchange(const std::vector<Message>& messages, void* stream);

  std::string failure();  // NCCL's asynchronous error, or ""; never blocks

  // Ends all messages in flight and refuses later ones; may wait for the device. Any thread on which the device is the
  // current one: NCCL sets the device that it finds again, and would make a context there.
  void abort();
  void abort_on(const WithDevice& with_device) noexcept;  // for other threads
  void leave();                                           // when no message is in flight

 private:
  std::string refused(const char* function, int result) const;

  const rd_gpu_nccl_functions& nccl_;
  std::mutex mutex_;  // held while messages are queued
  std::atomic<rd_gpu_nccl_comm> comm_;
};

}  // namespace ringdp::gpu
