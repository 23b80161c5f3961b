// The functions of a library whose devices are this process's memory, for what calls them: counts what is taken and
// given back, and fails where a test says so. One at a time: it is the process's.
#pragma once
#include <unistd.h>

#include <barrier>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "device/kernel/work.h"
#include "device/runtime/library.h"

namespace ringdp::gpu::testing {

inline void copy_as_told(int, void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

struct HostDevices {
  std::mutex mutex;  // guards the rest
  std::map<void*, size_t> memory, pinned, mapped;
  std::map<void*, int> imports;
  int streams_wait = 1;
  int without_descriptors = -1;  // a device that has no memory to be shared by descriptor
  bool same_device = false;
  std::string fails;  // a function's name: alloc, host_map, ...
  std::function<bool(int device, const rd_gpu_handle&)> refuses_import = [](int, const rd_gpu_handle&) {
    return false;
  };
  // Between host and devices, in either direction.
  std::function<void(int device, void* to, const void* from, size_t bytes)> copies = copy_as_told;
  std::function<bool(int device, size_t bytes)> is_late = [](int, size_t) { return false; };  // such a copy
  std::vector<std::pair<Work, int>> runs;                                                     // and their executors
  std::vector<AdamWork> steps;
  std::vector<CodecWork> recoded;
  std::vector<uint32_t> awaited;
  std::vector<std::pair<void*, size_t>> poisoned;
  int aborts_passed_on = 0;

  bool all_is_given_back() {
    const std::lock_guard<std::mutex> lock(mutex);
    return memory.empty() && pinned.empty() && mapped.empty() && imports.empty();
  }
};
inline HostDevices devices;
inline thread_local std::string sentence;  // of the latest failure of this thread

// Runs `f` unless this function is to fail.
template <class F>
int unless_failing(const char* name, F&& f) {
  const std::lock_guard<std::mutex> lock(devices.mutex);
  if (devices.fails == name) {
    sentence = std::string(name) + " fails here";
    return 1;
  }
  return f();
}

inline void* take(std::map<void*, size_t>& book, size_t bytes) {
  void* const memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  std::memset(memory, 0, bytes);
  book[memory] = bytes;
  return memory;
}

inline int give_back(std::map<void*, size_t>& book, void* memory) {
  book.erase(memory);
  std::free(memory);
  return 0;
}

inline int refuse(const char* why) {
  sentence = why;
  return 2;
}
inline int refuse_import() { return refuse("importing is refused here"); }

// The key holds the address. Sharing by descriptor needs one, and it is standard input's.
inline Functions memory_functions() {
  Functions f = {};
  f.error = [] { return sentence.c_str(); };
  f.describe = [](int device, rd_gpu_device* out) {
    return unless_failing("describe", [&] {
      *out = {};
      out->uuid[0] = devices.same_device ? 0 : static_cast<unsigned char>(device);
      out->multiprocessors = 16;
      out->waits_on_streams = devices.streams_wait;
      return 0;
    });
  };
  f.alloc = [](int device, size_t bytes, int sharing, void** out) {
    return unless_failing("alloc", [&] {
      if (sharing == RD_GPU_SHARE_FD && device == devices.without_descriptors) return refuse("no descriptors here");
      *out = take(devices.memory, bytes + 4096);
      static_cast<int*>(*out)[bytes / sizeof(int)] = sharing;  // behind what was asked for
      return 0;
    });
  };
  f.free = [](void* memory) { return unless_failing("free", [&] { return give_back(devices.memory, memory); }); };
  f.export_memory = [](void* memory, rd_gpu_handle* out, int* fd) {
    return unless_failing("export", [&] {
      *out = {};
      std::memcpy(out->key, &memory, sizeof memory);
      out->bytes = devices.memory[memory] - 4096;
      out->needs_fd = static_cast<int*>(memory)[out->bytes / sizeof(int)] == RD_GPU_SHARE_FD;
      *fd = out->needs_fd ? ::dup(0) : -1;
      return 0;
    });
  };
  f.import_memory = [](int device, const rd_gpu_handle* handle, int fd, void** out) {
    return unless_failing("import", [&] {
      if (devices.refuses_import(device, *handle) || (handle->needs_fd && fd < 0)) return refuse_import();
      std::memcpy(out, handle->key, sizeof *out);
      ++devices.imports[*out];
      return 0;
    });
  };
  f.unimport_memory = [](void* memory) {
    return unless_failing("unimport", [&] {
      if (--devices.imports[memory] == 0) devices.imports.erase(memory);
      return 0;
    });
  };
  return f;
}

inline Functions host_functions() {
  Functions f = memory_functions();
  f.copy_now = [](int device, void* to, const void* from, size_t bytes) {
    return unless_failing("copy_now", [&] {
      if (!devices.is_late(device, bytes)) return devices.copies(device, to, from, bytes), 0;
      sentence = "it has not ended";
      return static_cast<int>(RD_GPU_LATE);
    });
  };
  f.host_alloc = [](size_t bytes, void** host, void** on_device) {
    return unless_failing("host_alloc", [&] {
      *host = *on_device = take(devices.pinned, bytes);
      return 0;
    });
  };
  f.host_free = [](void* host) { return unless_failing("host_free", [&] { return give_back(devices.pinned, host); }); };
  f.host_map = [](void* host, size_t bytes, void** on_device) {
    return unless_failing("host_map", [&] {
      devices.mapped[host] = bytes;
      *on_device = host;
      return 0;
    });
  };
  f.host_unmap = [](void* host) { return unless_failing("host_unmap", [&] { return devices.mapped.erase(host), 0; }); };
  f.run = [](const void* work, size_t, int, int, int executor, void*) {
    return unless_failing("run", [&] {
      return devices.runs.push_back({*static_cast<const Work*>(work), executor}), 0;
    });
  };
  f.adam_step = [](const void* work, size_t, void*) {
    return unless_failing("adam_step", [&] { return devices.steps.push_back(*static_cast<const AdamWork*>(work)), 0; });
  };
  f.recode = [](const void* work, size_t, void*) {
    return unless_failing("recode", [&] { return devices.recoded.push_back(*static_cast<const CodecWork*>(work)), 0; });
  };
  f.await = [](const uint32_t*, uint32_t value, void*) {
    return unless_failing("await", [&] { return devices.awaited.push_back(value), 0; });
  };
  f.write = [](uint32_t* word, uint32_t value, void*) {
    return unless_failing("write", [&] { return *word = value, 0; });
  };
  f.kernels = [](char*, size_t) { return unless_failing("kernels", [] { return 0; }); };
  f.poison = [](void* memory, size_t bytes, const uint32_t*, void*) {
    return unless_failing("poison", [&] { return devices.poisoned.push_back({memory, bytes}), 0; });
  };
  f.deliver = [](void* memory, const void* from, size_t bytes, const uint32_t* abort, void*) {
    return unless_failing("deliver", [&] {
      if (*abort == 0) std::memmove(memory, from, bytes);
      return devices.poisoned.push_back({memory, bytes}), 0;
    });
  };
  f.pass_abort_on = [](uint32_t*, void*, const void*, int, void*) {
    return unless_failing("pass_abort_on", [&] { return ++devices.aborts_passed_on, 0; });
  };
  f.reduces = [](int element, int reduce, int* out) {
    *out = element == static_cast<int>(DType::kF32) && reduce <= static_cast<int>(ReduceOp::kAvg);
    return 0;
  };
  return f;
}

// Ends what ranks of a test have left on purpose.
inline void give_all_back() {
  const std::lock_guard<std::mutex> lock(devices.mutex);
  devices.imports.clear();
  devices.mapped.clear();
  for (auto* const book : {&devices.memory, &devices.pinned}) {
    while (!book->empty()) give_back(*book, book->begin()->first);
  }
}

// Devices as they are at first.
inline void reset_devices() {
  const std::lock_guard<std::mutex> lock(devices.mutex);
  devices.streams_wait = 1;
  devices.without_descriptors = -1;
  devices.same_device = false;
  devices.fails.clear();
  devices.refuses_import = [](int, const rd_gpu_handle&) { return false; };
  devices.copies = copy_as_told;
  devices.is_late = [](int, size_t) { return false; };
  devices.runs.clear();
  devices.steps.clear();
  devices.recoded.clear();
  devices.awaited.clear();
  devices.poisoned.clear();
  devices.aborts_passed_on = 0;
}

// An all-gather of ranks that are threads.
class RoundTable {
 public:
  explicit RoundTable(int world) : meets_(world), said_(static_cast<size_t>(world)) {}

  // Collective: everybody's, by rank. `between`: called by rank 0 once all have told.
  std::vector<std::string> all_gather(
      int rank, const std::string& own, const std::function<void()>& between = [] {}) {
    said_[static_cast<size_t>(rank)] = own;
    meets_.arrive_and_wait();
    if (rank == 0) between();
    const std::vector<std::string> all = said_;
    meets_.arrive_and_wait();
    return all;
  }

 private:
  std::barrier<> meets_;
  std::vector<std::string> said_;
};

}  // namespace ringdp::gpu::testing
