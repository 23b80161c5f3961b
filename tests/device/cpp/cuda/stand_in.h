// libringdp_gpu.so over devices that are host threads (tests/device/stand_in), opened as ringdp opens the real one.
#pragma once
#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "device/runtime/library.h"

namespace ringdp::gpu::testing {

inline const Functions& gpu() {
  static const Library opened = open_library(STAND_IN_LIBRARY);
  if (!opened.opened) throw std::runtime_error(opened.why_not);
  return opened.functions;
}

inline void succeed(int result) {
  if (result != 0) throw std::runtime_error(gpu().error());
}

// What a call that must fail says.
inline std::string refused(int result) { return result == 0 ? "it did not fail" : gpu().error(); }

// A function of the stand-in's own (stand_in/machine.cc).
template <class Function>
Function* control(const char* name) {
  gpu();
  static void* const handle = dlopen(STAND_IN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(dlsym(handle, name));
}

inline void set_device(int device) { control<void(int)>("stand_in_set_device")(device); }

// Of the thread's current device.
class TestStream {
 public:
  TestStream() : handle_(control<void*()>("stand_in_create_stream")()) {}
  ~TestStream() { control<void(void*)>("stand_in_destroy_stream")(handle_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;

  void* handle() const { return handle_; }
  void synchronize() const { control<void(void*)>("stand_in_synchronize_stream")(handle_); }

 private:
  void* const handle_;
};

// Pinned host memory: at `host` for the host, at `device` for devices.
struct Pinned {
  explicit Pinned(size_t bytes) { succeed(gpu().host_alloc(bytes, &host, &device)); }
  ~Pinned() { gpu().host_free(host); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  void *host = nullptr, *device = nullptr;
};

}  // namespace ringdp::gpu::testing
