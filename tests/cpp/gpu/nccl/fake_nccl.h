// NCCL's functions for ranks that are threads: nothing moves, calls are told, and fail where a test says so.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gpu/host_functions.h"

namespace ringdp::gpu::testing {

struct FakeNccl {
  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  std::vector<std::string> calls;  // "send 16 to 1", "end", ...
  std::set<rd_gpu_nccl_comm> live;
  std::set<int> refuses_rank;  // at ncclCommInitRank
  std::string fails;           // a function's name: send, end, async
  bool blocks = false;         // ncclCommInitRank does not come back
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
  void unblock() {
    const std::lock_guard lock(mutex);
    blocks = false;
    changed.notify_all();
  }
};
inline FakeNccl fake_nccl;

inline int end_communicator(rd_gpu_nccl_comm comm, const char* how) {
  const std::lock_guard lock(fake_nccl.mutex);
  fake_nccl.calls.push_back(how);
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
    f.comm_get_async_error = [](rd_gpu_nccl_comm, int* error) { return *error = fake_nccl.result_of("async"), 0; };
    f.get_error_string = [](int error) { return error == 2 ? "unhandled system error" : "remote error"; };
    f.get_last_error = [](rd_gpu_nccl_comm) { return ""; };
    f.send = [](const void*, size_t bytes, int, int peer, rd_gpu_nccl_comm, void*) {
      fake_nccl.tell("send " + std::to_string(bytes) + " to " + std::to_string(peer));
      return fake_nccl.result_of("send");
    };
    f.recv = [](void*, size_t bytes, int, int peer, rd_gpu_nccl_comm, void*) {
      fake_nccl.tell("receive " + std::to_string(bytes) + " from " + std::to_string(peer));
      return 0;
    };
    f.group_start = [] { return fake_nccl.tell("start"), 0; };
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
  fake_nccl.blocks = false;
  fake_nccl.version = 22907;
}

}  // namespace ringdp::gpu::testing
