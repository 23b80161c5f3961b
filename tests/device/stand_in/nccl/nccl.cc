// The part of NCCL that ringdp calls, over sockets of one machine and streams of the stand-in. RINGDP_NCCL names it.
//
// As in NCCL, what is between a group's start and its end goes side by side, in the order of the stream; it waits
// without end for peers, also for those that have gone, which an asynchronous error tells, until the communicator is
// aborted. STAND_IN_NCCL_REFUSES=init: ncclCommInitRank fails.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "device/runtime/nccl_functions.h"
#include "nccl/wires.h"
#include "stand_in/machine.h"
#include "stand_in/memory.h"
#include "stand_in/stream.h"

using stand_in::Message;

namespace {

enum Result { kSuccess = 0, kCudaError = 1, kSystemError = 2, kInvalidArgument = 4, kRemoteError = 6 };

struct Communicator {
  Communicator(const std::string& name, int rank, int world) : wires(name, rank, world), world(world) {
    stand_in::need_context();
  }

  stand_in::Wires wires;
  const int world, device = stand_in::current_device();
  std::atomic<bool> aborted{false};
  std::atomic<int> error{kSuccess};
  std::mutex mutex;  // held while messages move

  void run(std::vector<Message> messages) {
    const std::lock_guard lock(mutex);
    while (!messages.empty() && !aborted) {
      const auto progress = wires.move(messages);
      if (progress == stand_in::Wires::Progress::kLost) error = kRemoteError;
      if (progress != stand_in::Wires::Progress::kSome) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
};

// A handle is a number: one that has ended is known to be none.
class Communicators {
 public:
  rd_gpu_nccl_comm add(std::shared_ptr<Communicator> communicator) {
    const std::lock_guard lock(mutex_);
    const auto handle = reinterpret_cast<rd_gpu_nccl_comm>(++last_);
    all_[handle] = std::move(communicator);
    return handle;
  }
  std::shared_ptr<Communicator> of(rd_gpu_nccl_comm handle) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(handle);
    return found == all_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Communicator> take(rd_gpu_nccl_comm handle) {
    auto communicator = of(handle);
    const std::lock_guard lock(mutex_);
    all_.erase(handle);
    return communicator;
  }

 private:
  std::mutex mutex_;  // guards the rest
  uintptr_t last_ = 0;
  std::map<rd_gpu_nccl_comm, std::shared_ptr<Communicator>> all_;
};

Communicators& communicators() {
  static auto* const instance = new Communicators;
  return *instance;
}

// As NCCL does while it ends a communicator: resetting makes a context on the device that was current before, too.
class OnDeviceOf {
 public:
  explicit OnDeviceOf(const Communicator& communicator) { stand_in::set_device(communicator.device); }
  ~OnDeviceOf() { stand_in::set_device(before_); }
  OnDeviceOf(const OnDeviceOf&) = delete;
  OnDeviceOf& operator=(const OnDeviceOf&) = delete;

 private:
  const int before_ = stand_in::current_device();
};

struct Group {
  int depth = 0;
  std::shared_ptr<Communicator> communicator;
  stand_in::Stream* stream = nullptr;
  std::vector<Message> messages;
};
thread_local Group group;

int add(const Message& message, rd_gpu_nccl_comm handle, void* stream) {
  const auto communicator = communicators().of(handle);
  if (!communicator || group.depth == 0) return kInvalidArgument;
  if (message.peer < 0 || message.peer >= communicator->world) return kInvalidArgument;
  if (!stand_in::is_device_memory(message.memory, message.bytes)) return kCudaError;
  group.communicator = communicator;
  group.stream = static_cast<stand_in::Stream*>(stream);
  group.messages.push_back(message);
  return kSuccess;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 22900;
  return kSuccess;
}

int ncclGetUniqueId(rd_gpu_nccl_id* id) {
  std::random_device random;
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "%08x%08x", random(), random());
  return kSuccess;
}

int ncclCommInitRank(rd_gpu_nccl_comm* comm, int world, rd_gpu_nccl_id id, int rank) {
  const char* const refuses = std::getenv("STAND_IN_NCCL_REFUSES");
  if (refuses != nullptr && std::strcmp(refuses, "init") == 0) return kSystemError;
  *comm = communicators().add(std::make_shared<Communicator>(id.internal, rank, world));
  return kSuccess;
}

int ncclCommDestroy(rd_gpu_nccl_comm comm) {
  const auto communicator = communicators().take(comm);
  if (!communicator) return kInvalidArgument;
  const OnDeviceOf here(*communicator);
  return kSuccess;
}

// Comes back when nothing of it runs any more.
int ncclCommAbort(rd_gpu_nccl_comm comm) {
  const auto communicator = communicators().take(comm);
  if (!communicator) return kInvalidArgument;
  const OnDeviceOf here(*communicator);
  communicator->aborted = true;
  const std::lock_guard lock(communicator->mutex);
  return kSuccess;
}

int ncclCommGetAsyncError(rd_gpu_nccl_comm comm, int* error) {
  const auto communicator = communicators().of(comm);
  if (!communicator) return kInvalidArgument;
  *error = communicator->error;
  return kSuccess;
}

const char* ncclGetErrorString(int error) {
  switch (error) {
    case kSuccess:
      return "no error";
    case kCudaError:
      return "unhandled cuda error";
    case kSystemError:
      return "unhandled system error";
    case kInvalidArgument:
      return "invalid argument";
    case kRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(rd_gpu_nccl_comm) { return ""; }

int ncclGroupStart() {
  ++group.depth;
  return kSuccess;
}

int ncclSend(const void* from, size_t count, int, int peer, rd_gpu_nccl_comm comm, void* stream) {
  return add({true, const_cast<char*>(static_cast<const char*>(from)), count, peer}, comm, stream);
}

int ncclRecv(void* to, size_t count, int, int peer, rd_gpu_nccl_comm comm, void* stream) {
  return add({false, static_cast<char*>(to), count, peer}, comm, stream);
}

int ncclGroupEnd() {
  if (group.depth == 0) return kInvalidArgument;
  if (--group.depth > 0) return kSuccess;
  const Group ended = std::exchange(group, Group());
  if (ended.messages.empty()) return kSuccess;
  stand_in::known(ended.stream).push([communicator = ended.communicator, messages = ended.messages] {
    communicator->run(messages);
  });
  return kSuccess;
}
}
