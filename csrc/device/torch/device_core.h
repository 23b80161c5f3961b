// A device as ringdp uses it: its functions, and guards for threads that come by.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>

#include <cstddef>
#include <cstdint>

#include "device/runtime/library.h"

namespace ringdp::backend {

// What ringdp needs from a device beyond torch's generic interface: pinned memory and stream operations.
//
// Any thread may call; the device is the calling thread's current one. Streams are native handles
// (VirtualGuardImpl::getStreamNativeHandle). Errors are ringdp::Error. Only release() may wait for the device.
class DeviceCore {
 public:
  virtual ~DeviceCore() = default;

  // Host memory that the device can copy from and to, and in which it can wait for a word.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;

  // In the order of a stream. copy: one side is such host memory. call: the function runs on a thread of the driver and
  // must not wait. await: until the word, in such host memory, is at least 1.
  virtual void copy(void* to, const void* from, size_t bytes, void* stream) = 0;
  virtual void call(void* stream, void (*function)(void*), void* argument) = 0;
  virtual void await(void* stream, const uint32_t* word) = 0;

  virtual bool is_capturing(void* stream) = 0;  // into a graph

  virtual void* new_stream(int device) = 0;  // of that device, of the highest priority; lasts until the process ends

  // For sharing its memory and running collectives on it.
  virtual const gpu::Functions& functions() const = 0;
};

// Sets the thread's current device where any thread may come by, as in destructors: on a thread without one the runtime
// would make a context on the first device. Never throws: at process exit the runtime may be gone.
class QuietDeviceGuard {
 public:
  explicit QuietDeviceGuard(c10::Device device) noexcept;

 private:
  c10::OptionalDeviceGuard guard_;
};

// Lets the thread query events and streams while another thread captures a graph, which that would otherwise break.
class BesideCaptures {
 public:
  explicit BesideCaptures(const DeviceCore& core) noexcept : core_(core) { swap(); }
  ~BesideCaptures() { swap(); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  void swap() noexcept { core_.functions().swap_capture_mode(&mode_); }

  const DeviceCore& core_;
  int mode_ = RD_GPU_CAPTURE_RELAXED;  // swapped with the thread's own
};

// Null: tensors of such a device are refused.
DeviceCore* core_of(c10::DeviceType type);

}  // namespace ringdp::backend
