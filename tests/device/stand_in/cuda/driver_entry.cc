// cuGetProcAddress, by which foreign programs (benchmarks/devices/driver.py) find the driver interface, and the part of
// it that only they use. The library of ringdp finds its functions by the runtime's name lookup (driver.cc).
#include <cuda.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>

#include "cuda/answered.h"
#include "cuda/entry.h"
#include "device/cuda/cuda_primitives.h"
#include "stand_in/kernel.h"
#include "stand_in/memory.h"

using namespace stand_in;

namespace {

using Primitives = ringdp::gpu::CudaPrimitives;

template <class Text>
int told(Text&& text) {
  return static_cast<int>(answered(std::forward<Text>(text), nullptr));
}

void* at(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

int init(unsigned) {
  return told([] {
    if (machine().devices == 0) throw Refusal(cudaErrorNoDevice, "STAND_IN_DEVICES is 0");
  });
}
int driver_version(int* version) {
  return told([&] { *version = 12000; });
}
int error_name(int error, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return 0;
}
int device_count(int* count) { return static_cast<int>(cudaGetDeviceCount(count)); }
int device_name(char* name, int bytes, int device) {
  return told([&] { std::snprintf(name, static_cast<size_t>(bytes), "stand-in %d", device); });
}
// As cuCtxSetCurrent takes them: 0 is none.
int retain_context(CUcontext* made, int device) {
  return told([&] { *made = reinterpret_cast<CUcontext>(intptr_t{device} + 1); });
}

int alloc(CUdeviceptr* memory, size_t bytes) {
  return static_cast<int>(cudaMalloc(reinterpret_cast<void**>(memory), bytes));
}
int copy_to_host(void* to, CUdeviceptr from, size_t bytes) {
  return told([&] {
    if (!is_device_memory(at(from), bytes)) throw Refusal(cudaErrorInvalidValue, "no memory that devices reach");
    std::memcpy(to, at(from), bytes);
  });
}
int copy_to_pageable(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return told([&] {
    const CopyToHost here;
    known(stream).synchronize();
    if (copy_to_host(to, from, bytes) != 0) throw Refusal(cudaErrorInvalidValue, "no memory that devices reach");
  });
}
int copy_on_device(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return told([&] { copy(known(stream), at(to), at(from), bytes); });
}
int set_words(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return told([&] {
    if (!is_device_memory(at(to), 4 * count)) throw Refusal(cudaErrorInvalidValue, "no memory that devices reach");
    launch(known(stream), 1, sizeof to + sizeof value + sizeof count, [=] {
      if (ringdp::gpu::testing::this_thread->thread != 0) return;
      touch(at(to), 4 * count);
      for (size_t i = 0; i < count; ++i) static_cast<volatile uint32_t*>(at(to))[i] = value;
    });
  });
}
int ipc_handle(cudaIpcMemHandle_t* handle, CUdeviceptr memory) {
  return static_cast<int>(cudaIpcGetMemHandle(handle, at(memory)));
}
int open_ipc(CUdeviceptr* memory, cudaIpcMemHandle_t handle, unsigned flags) {
  return static_cast<int>(cudaIpcOpenMemHandle(reinterpret_cast<void**>(memory), handle, flags));
}
int alloc_pinned(void** memory, size_t bytes, unsigned flags) {
  return static_cast<int>(cudaHostAlloc(memory, bytes, flags));
}
int register_pages(void* memory, size_t bytes, unsigned flags) {
  return static_cast<int>(cudaHostRegister(memory, bytes, flags));
}
int device_pointer(CUdeviceptr* address, void* memory, unsigned flags) {
  return static_cast<int>(cudaHostGetDevicePointer(reinterpret_cast<void**>(address), memory, flags));
}

int make_stream(CUstream* stream, unsigned flags, int) {
  return static_cast<int>(cudaStreamCreateWithFlags(stream, flags));
}
int end_stream(CUstream stream) { return static_cast<int>(cudaStreamDestroy(stream)); }
constexpr int kNotReady = 600;

int query_stream(CUstream stream) {
  bool idle = false;
  const int result = told([&] { idle = known(stream).idle(); });
  return result != 0 || idle ? result : kNotReady;
}
int make_event(Event** event, unsigned) {
  return told([&] {
    wait_for_copies_to_host();
    *event = new Event;
  });
}
int query_event(Event* event) {
  bool passed = false;
  const int result = told([&] { passed = event->query(); });
  return result != 0 || passed ? result : kNotReady;
}
int destroy_event(Event* event) {
  return told([&] {
    wait_for_copies_to_host();
    delete event;
  });
}
int record_event(Event* event, CUstream stream) {
  return told([&] { event->record(known(stream)); });
}
int wait_event(CUstream stream, Event* event, unsigned) {
  return told([&] { event->block(known(stream)); });
}

// Kernels of a module in PTX, by their names: those of benchmarks/devices/kernels.py.
enum class Known : intptr_t { kNothing = 1, kPing, kPut, kCheck };

int load_module(void** module, const char*) {
  return told([&] { *module = reinterpret_cast<void*>(1); });
}
int get_function(Known* function, void*, const char* name) {
  return told([&] {
    if (std::strncmp(name, "nothing_", 8) == 0) {
      *function = Known::kNothing;
    } else if (std::strcmp(name, "ping") == 0) {
      *function = Known::kPing;
    } else if (std::strcmp(name, "put") == 0) {
      *function = Known::kPut;
    } else if (std::strcmp(name, "check") == 0) {
      *function = Known::kCheck;
    } else {
      throw Refusal(cudaErrorSymbolNotFound, "no such kernel");
    }
  });
}
struct Ping {
  uint64_t *mine, *theirs, rounds, first, deadline_ns;
};
void ping(const Ping& game) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(game.deadline_ns);
  for (uint64_t turn = 1; turn <= game.rounds; ++turn) {
    if (game.first != 0) Primitives::store_release(game.theirs, turn);
    while (Primitives::load_acquire(game.mine) < turn) {
      if (std::chrono::steady_clock::now() > end) return;
    }
    if (game.first == 0) Primitives::store_release(game.theirs, turn);
  }
}
struct Pass {
  uint32_t* memory;
  uint64_t words, value;
  uint32_t* errors;  // of kCheck
};
void run_pass(Known function, const Pass& pass) {
  touch(pass.memory, 4 * pass.words);
  for (uint64_t i = 0; i < pass.words; ++i) {
    if (function == Known::kPut) {
      __atomic_store_n(pass.memory + i, static_cast<uint32_t>(pass.value), __ATOMIC_RELAXED);
    } else if (__atomic_load_n(pass.memory + i, __ATOMIC_RELAXED) != static_cast<uint32_t>(pass.value)) {
      __atomic_fetch_add(pass.errors, 1u, __ATOMIC_RELAXED);
    }
  }
}
int launch_kernel(Known function, unsigned blocks, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  CUstream stream, void** parameters, void**) {
  return told([&] {
    const auto number = [&](int k) { return *static_cast<uint64_t*>(parameters[k]); };
    std::function<void()> body = [] {};
    if (function == Known::kPing) {
      const Ping game = {reinterpret_cast<uint64_t*>(number(0)), reinterpret_cast<uint64_t*>(number(1)), number(2),
                         number(3), number(4)};
      body = [game] { ping(game); };
    } else if (function != Known::kNothing) {
      const Pass pass = {reinterpret_cast<uint32_t*>(number(0)), number(1), number(2),
                         function == Known::kCheck ? reinterpret_cast<uint32_t*>(number(3)) : nullptr};
      body = [function, pass] { run_pass(function, pass); };
    }
    // One thread does all of it, so one block is enough.
    const int placed = function == Known::kNothing ? static_cast<int>(blocks) : 1;
    launch(known(stream), placed, sizeof(Pass), [body] {
      if (ringdp::gpu::testing::this_thread->thread == 0) body();
    });
  });
}

const Entry kEntries[] = {
    entry("cuInit", init),
    entry("cuDriverGetVersion", driver_version),
    entry("cuGetErrorName", error_name),
    entry("cuDeviceGetCount", device_count),
    entry("cuDeviceGetName", device_name),
    entry("cuDevicePrimaryCtxRetain", retain_context),
    entry("cuMemAlloc", alloc),
    entry("cuMemcpyDtoH", copy_to_host),
    entry("cuMemcpyDtoHAsync", copy_to_pageable),
    entry("cuMemcpyDtoDAsync", copy_on_device),
    entry("cuMemsetD32Async", set_words),
    entry("cuIpcGetMemHandle", ipc_handle),
    entry("cuIpcOpenMemHandle", open_ipc),
    entry("cuMemHostAlloc", alloc_pinned),
    entry("cuMemHostRegister", register_pages),
    entry("cuMemHostGetDevicePointer", device_pointer),
    entry("cuStreamCreateWithPriority", make_stream),
    entry("cuStreamDestroy", end_stream),
    entry("cuStreamQuery", query_stream),
    entry("cuStreamWaitEvent", wait_event),
    entry("cuEventCreate", make_event),
    entry("cuEventRecord", record_event),
    entry("cuEventQuery", query_event),
    entry("cuEventDestroy", destroy_event),
    entry("cuModuleLoadData", load_module),
    entry("cuModuleGetFunction", get_function),
    entry("cuLaunchKernel", launch_kernel),
};

}  // namespace

extern "C" int cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, void*) {
  if (void* const known = found_in(kEntries, name)) {
    *function = known;
    return 0;
  }
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t result = cudaGetDriverEntryPointByVersion(name, function, 0, 0, &found);
  return found == cudaDriverEntryPointSuccess ? static_cast<int>(result) : static_cast<int>(cudaErrorSymbolNotFound);
}
