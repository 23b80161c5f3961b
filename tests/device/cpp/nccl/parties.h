// NCCL's functions for ranks that are threads: nothing moves, calls are told, and fail where a test says so.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "device/cpp/runtime/host_functions.h"
#include "device/nccl/ranks.h"

namespace ringdp::gpu::testing {

struct FakeNccl {
  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  std::vector<std::string> calls;  // "send 16 to 1", "end", ...
  std::set<rd_gpu_nccl_comm> live;
  std::set<int> refuses_rank;  // at ncclCommInitRank
  std::string fails;           // a function's name: id, start, send, recv, end, async, ask
  bool blocks = false;         // neither ncclCommInitRank nor ncclGroupStart comes back
  bool in_progress = false;    // what ncclCommGetAsyncError tells
  int ended_elsewhere = 0;     // communicators, on threads without their device
  int version = 22907;

  void tell(const std::string& what) {
    const std::lock_guard lock(mutex);
    calls.push_back(what);
  }
  int result_of(const char* name) {
    const std::lock_guard lock(mutex);
    return fails == name ? 6 : 0;
  }
  bool nothing_is_left() {
    const std::lock_guard lock(mutex);
    return live.empty();
  }
  void start_group() {
    std::unique_lock lock(mutex);
    calls.push_back("start");
    changed.wait(lock, [this] { return !blocks; });
  }
  void unblock() {
    const std::lock_guard lock(mutex);
    blocks = false;
    changed.notify_all();
  }
};
inline FakeNccl fake_nccl;

// Calls it on a thread whose current device is that of the communicator.
inline thread_local bool has_device = false;
inline void with_device(const std::function<void()>& run) {
  has_device = true;
  run();
  has_device = false;
}

inline int end_communicator(rd_gpu_nccl_comm comm, const char* how) {
  const std::lock_guard lock(fake_nccl.mutex);
  fake_nccl.calls.push_back(how);
  fake_nccl.ended_elsewhere += !has_device;
  return fake_nccl.live.erase(comm) == 1 ? 0 : 4;
}

inline int begin_communicator(rd_gpu_nccl_comm* comm, int rank) {
  static std::atomic<uintptr_t> last{0};
  std::unique_lock lock(fake_nccl.mutex);
  fake_nccl.changed.wait(lock, [] { return !fake_nccl.blocks; });
  if (fake_nccl.refuses_rank.count(rank)) return 2;
  *comm = reinterpret_cast<rd_gpu_nccl_comm>(++last);
  fake_nccl.live.insert(*comm);
  return 0;
}

inline const rd_gpu_nccl_functions& nccl_functions() {
  static const rd_gpu_nccl_functions functions = [] {
    rd_gpu_nccl_functions f = {};
    f.get_version = [](int* version) { return *version = fake_nccl.version, 0; };
    f.get_unique_id = [](rd_gpu_nccl_id* id) { return id->internal[0] = 'x', fake_nccl.result_of("id"); };
    f.comm_init_rank = [](rd_gpu_nccl_comm* comm, int, rd_gpu_nccl_id, int rank) {
      return begin_communicator(comm, rank);
    };
    f.comm_destroy = [](rd_gpu_nccl_comm comm) { return end_communicator(comm, "destroy"); };
    f.comm_abort = [](rd_gpu_nccl_comm comm) { return end_communicator(comm, "abort"); };
    f.comm_get_async_error = [](rd_gpu_nccl_comm, int* error) {
      *error = fake_nccl.in_progress ? RD_GPU_NCCL_IN_PROGRESS : fake_nccl.result_of("async");
      return fake_nccl.result_of("ask");
    };
    f.get_error_string = [](int error) { return error == 2 ? "unhandled system error" : "remote error"; };
    f.get_last_error = [](rd_gpu_nccl_comm) { return ""; };
    f.send = [](const void*, size_t bytes, int, int peer, rd_gpu_nccl_comm, void*) {
      fake_nccl.tell("send " + std::to_string(bytes) + " to " + std::to_string(peer));
      return fake_nccl.result_of("send");
    };
    f.recv = [](void*, size_t bytes, int, int peer, rd_gpu_nccl_comm, void*) {
      fake_nccl.tell("receive " + std::to_string(bytes) + " from " + std::to_string(peer));
      return fake_nccl.result_of("recv");
    };
    f.group_start = [] { return fake_nccl.start_group(), fake_nccl.result_of("start"); };
    f.group_end = [] { return fake_nccl.tell("end"), fake_nccl.result_of("end"); };
    return f;
  }();
  return functions;
}

// Those of host_functions.h, and NCCL's; streams do at once what they are given.
inline Functions functions_with_nccl() {
  Functions f = host_functions();
  f.call = [](void*, void (*call)(void*), void* argument) { return call(argument), 0; };
  f.copy = [](void* to, const void* from, size_t bytes, void*) { return std::memmove(to, from, bytes), 0; };
  f.nccl = [](const char*, int* version, const rd_gpu_nccl_functions** functions) {
    sentence = "no NCCL: none here";
    *version = fake_nccl.version;
    *functions = fake_nccl.version == 0 ? nullptr : &nccl_functions();
    return 0;
  };
  return f;
}

inline void reset_nccl() {
  reset_devices();
  const std::lock_guard lock(fake_nccl.mutex);
  fake_nccl.calls.clear();
  fake_nccl.live.clear();
  fake_nccl.refuses_rank.clear();
  fake_nccl.fails.clear();
  fake_nccl.blocks = fake_nccl.in_progress = false;
  fake_nccl.ended_elsewhere = 0;
  fake_nccl.version = 22907;
}

// Ranks as threads that meet around a fake NCCL, each with a device of this process.

constexpr int64_t kPartyWindow = 1 << 20, kHeapBytes = 1 << 20;

class Parties {
 public:
  explicit Parties(int world) : world_(world), table_(world) {
    reset_nccl();
    for (int r = 0; r < world; ++r) {
      bases_.push_back(static_cast<std::byte*>(std::aligned_alloc(4096, kHeapBytes)));
      heaps_.push_back(std::make_shared<transport::Heap>(nullptr, bases_.back(), kHeapBytes));
    }
  }
  ~Parties() {
    for (std::byte* const base : bases_) std::free(base);
  }

  plan::LinkSettings link_settings;  // with hosts, these share memory within
  std::function<std::string(int rank)> why_not_on_host = [](int) { return ""; };

  std::vector<std::unique_ptr<NcclRanks>> bootstrap() {
    std::vector<std::unique_ptr<NcclRanks>> met(static_cast<size_t>(world_));
    std::vector<std::thread> threads;
    for (int r = 0; r < world_; ++r) {
      threads.emplace_back(
          [this, r, &mine = met[static_cast<size_t>(r)]] { mine = NcclRanks::bootstrap(functions_, r, around(r)); });
    }
    for (std::thread& thread : threads) thread.join();
    return met;
  }

 private:
  NcclBootstrapContext around(int rank) {
    NcclBootstrapContext around;
    around.rank = rank;
    around.world = world_;
    around.window_bytes = kPartyWindow;
    around.link_settings = link_settings;
    around.deadline = Deadline::after(std::chrono::seconds(20));
    around.all_gather = [this, rank](const std::string& own) { return table_.all_gather(rank, own); };
    around.with_device = with_device;
    around.still_there = [] {};
    around.on_host = [this, rank](HostAllGather& gather) { return on_host(rank, gather); };
    around.why_not_on_host = why_not_on_host(rank);
    return around;
  }

  BootstrapContext on_host(int rank, HostAllGather& gather) {
    BootstrapContext around;
    around.rank = rank - gather.first();
    around.world = gather.members();
    around.window_bytes = kPartyWindow;
    around.all_gather = [&gather](const std::string& own) { return gather.gather(own); };
    around.pass_fds = [members = gather.members()](const std::vector<std::string>&, int) {
      return std::vector<UniqueFd>(static_cast<size_t>(members));
    };
    around.heap = heaps_[static_cast<size_t>(rank)];
    around.heaps.assign(bases_.begin() + gather.first(), bases_.begin() + gather.first() + gather.members());
    around.heap_bytes = kHeapBytes;
    return around;
  }

  const int world_;
  const Functions functions_ = functions_with_nccl();
  RoundTable table_;
  std::vector<std::byte*> bases_;
  std::vector<std::shared_ptr<transport::Heap>> heaps_;
};

}  // namespace ringdp::gpu::testing
