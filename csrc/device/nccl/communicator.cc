#include "device/nccl/communicator.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <thread>

namespace ringdp::gpu {
namespace {

constexpr uint32_t kBuild =
    RD_GPU_ABI << 24 ^ static_cast<uint32_t>(sizeof(NcclPeerInfo) << 8) ^ 1u;  // the last: version of the plans

std::string rank(size_t number) { return "rank " + std::to_string(number); }

constexpr int64_t kGreeting = 16;  // bytes of the first message
constexpr std::chrono::milliseconds kGlance{20};
constexpr std::chrono::milliseconds kTurn{1};
constexpr std::chrono::seconds kPatience{1};  // of abort(), with a thread that is queueing

std::vector<NcclCommunicator::Message> greetings(int rank, int world, char* memory) {
  std::vector<NcclCommunicator::Message> messages;
  for (int k = 1; k < world; ++k) {
    const int to = (rank + k) % world, from = (rank + world - k) % world;
    messages.push_back({true, memory, kGreeting, to});
    messages.push_back({false, memory + (from + 1) * kGreeting, kGreeting, from});
  }
  return messages;
}

// State shared by the joining thread and its waiter; the thread may outlive the waiter.
class Joining {
 public:
  Joining(const NcclCommunicator::Place& place, NcclCommunicator::Means means)
      : place_(place), keeps_(std::move(means.keeps)), means_(std::move(means)) {}

  // The joining thread.
  static void run(const std::shared_ptr<Joining>& self) {
    std::string error;
    try {
      self->means_.with_device([&] {
        error = join(self);
        self->keeps_.reset();  // here, because this may free device memory
      });
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    std::unique_ptr<NcclCommunicator> unwanted;
    {
      const std::lock_guard lock(self->mutex_);
      self->error_ = error;
      self->over_ = true;
      if (self->left_) unwanted = std::move(self->joined_);
      self->changed_.notify_all();
    }
    if (unwanted) unwanted->abort_on(self->means_.with_device);  // without the lock, because that may take a while
  }

  // The waiter.
  std::unique_ptr<NcclCommunicator> wait(Deadline deadline) {
    std::unique_lock lock(mutex_);
    while (!over_) {
      changed_.wait_for(lock, kGlance);
      lock.unlock();
      try {
        means_.still_there();
      } catch (...) {
        leave();
        throw;
      }
      lock.lock();
      if (!over_ && deadline.passed()) {
        left_ = true;
        changed_.notify_all();
        throw NcclFailure("joining did not finish in time: a rank cannot be reached or is late", true);
      }
    }
    if (!error_.empty()) throw NcclFailure(error_, false);
    return std::move(joined_);
  }

 private:
  void leave() {
    const std::lock_guard lock(mutex_);
    left_ = true;
    changed_.notify_all();
  }

  // "" or NCCL's error. If the waiter has left, the communicator is destroyed, which ends its kernels.
  static std::string join(const std::shared_ptr<Joining>& self) {
    rd_gpu_nccl_comm comm = nullptr;
    const NcclCommunicator::Place& place = self->place_;
    const int result = place.nccl->comm_init_rank(&comm, place.world, place.id, place.rank);
    if (result != 0) return std::string("ncclCommInitRank: ") + place.nccl->get_error_string(result);
    auto joined = std::make_unique<NcclCommunicator>(*place.nccl, comm);
    if (self->is_left()) return "";
    const std::vector<NcclCommunicator::Message> first = greetings(place.rank, place.world, self->means_.memory);
    const std::string error = joined->exchange(first, self->means_.stream);
    if (!error.empty()) return error;
    auto* const held = new std::shared_ptr<Joining>(self);
    if (self->means_.functions->call(self->means_.stream, &greeted, held) != 0) {
      delete held;
      return self->means_.functions->error();
    }
    std::unique_lock lock(self->mutex_);
    self->changed_.wait(lock, [&] { return self->greeted_ || self->left_; });
    if (self->greeted_ && !self->left_) self->joined_ = std::move(joined);
    lock.unlock();
    return "";
  }

  bool is_left() {
    const std::lock_guard lock(mutex_);
    return left_;
  }

  static void greeted(void* argument) {
    const std::unique_ptr<std::shared_ptr<Joining>> held(static_cast<std::shared_ptr<Joining>*>(argument));
    const std::lock_guard lock((*held)->mutex_);
    (*held)->greeted_ = true;
    (*held)->changed_.notify_all();
  }

  const NcclCommunicator::Place place_;
  std::shared_ptr<const void> keeps_;  // of the joining thread
  const NcclCommunicator::Means means_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  bool over_ = false, left_ = false, greeted_ = false;
  std::string error_;
  std::unique_ptr<NcclCommunicator> joined_;
};

}  // namespace

NcclPeerInfo nccl_peer_info_without(const std::string& why_not) {
  NcclPeerInfo info;
  info.build = kBuild;
  put(info.why_not, why_not);
  return info;
}

std::vector<NcclPeerInfo> nccl_peer_infos_from(const std::vector<std::string>& bytes) {
  return checked_infos<NcclPeerInfo>(bytes, kBuild, "what it says of NCCL is not understood");
}

std::string why_not(const std::vector<NcclPeerInfo>& infos) {
  for (size_t r = 0; r < infos.size(); ++r) {
    if (infos[r].version == 0) return rank(r) + ": " + infos[r].why_not;
  }
  for (size_t r = 1; r < infos.size(); ++r) {
    if (infos[r].version != infos[0].version) {
      return rank(0) + " has NCCL " + std::to_string(infos[0].version) + ", and " + rank(r) + " has " +
             std::to_string(infos[r].version);
    }
    for (size_t other = 0; other < r; ++other) {
      if (std::memcmp(infos[other].uuid, infos[r].uuid, sizeof infos[r].uuid) != 0) continue;
      return "ranks " + std::to_string(other) + " and " + std::to_string(r) +
             " share a device, and NCCL wants one for each";
    }
  }
  return "";
}

int64_t NcclCommunicator::bytes_to_join(int world) { return (world + 1) * kGreeting; }

std::unique_ptr<NcclCommunicator> NcclCommunicator::join(const Place& place, const Means& means, Deadline deadline) {
  const auto joining = std::make_shared<Joining>(place, means);
  std::thread([joining] { Joining::run(joining); }).detach();
  return joining->wait(deadline);
}

std::string NcclCommunicator::refused(const char* function, int result) const {
  return std::string(function) + ": " + nccl_.get_error_string(result);
}

std::string NcclCommunicator::exchange(const std::vector<Message>& messages, void* stream) {
  const std::lock_guard lock(mutex_);
  const rd_gpu_nccl_comm comm = comm_.load();
  if (comm == nullptr || messages.empty()) return "";
  if (const int result = nccl_.group_start(); result != 0) return refused("ncclGroupStart", result);
  std::string error;
  for (const Message& message : messages) {
    const auto count = static_cast<size_t>(message.bytes);
    const int result = message.sends ? nccl_.send(message.memory, count, RD_GPU_NCCL_UINT8, message.peer, comm, stream)
                                     : nccl_.recv(message.memory, count, RD_GPU_NCCL_UINT8, message.peer, comm, stream);
    if (result != 0 && error.empty()) error = refused(message.sends ? "ncclSend" : "ncclRecv", result);
  }
  const int result = nccl_.group_end();
  return error.empty() && result != 0 ? refused("ncclGroupEnd", result) : error;
}

std::string NcclCommunicator::failure() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  const rd_gpu_nccl_comm comm = comm_.load();
  if (!lock || comm == nullptr) return "";
  int error = 0;
  const int result = nccl_.comm_get_async_error(comm, &error);
  if (result != 0) return refused("ncclCommGetAsyncError", result);
  if (error == 0 || error == RD_GPU_NCCL_IN_PROGRESS) return "";
  return nccl_.get_error_string(error);
}

// A thread that queues may block on a full device, which in turn waits for this abort: so wait for the lock only
// briefly. It polls because the thread sanitizer does not support a timed mutex.
void NcclCommunicator::abort() {
  const Deadline patience = Deadline::after(kPatience);
  std::unique_lock lock(mutex_, std::try_to_lock);
  while (!lock && !patience.passed()) {
    std::this_thread::sleep_for(kTurn);
    lock.try_lock();
  }
  if (const rd_gpu_nccl_comm comm = comm_.exchange(nullptr)) nccl_.comm_abort(comm);
}

void NcclCommunicator::abort_on(const WithDevice& with_device) noexcept {
  try {
    with_device([this] { abort(); });
  } catch (const std::exception&) {  // the device is broken, which is told where it broke
    abort();
  }
}

void NcclCommunicator::leave() {
  const std::lock_guard lock(mutex_);
  if (const rd_gpu_nccl_comm comm = comm_.exchange(nullptr)) nccl_.comm_destroy(comm);
}

}  // namespace ringdp::gpu
