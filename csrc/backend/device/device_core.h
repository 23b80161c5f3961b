// What ringdp needs of a device beyond torch's interface for any device: pinned memory, and the order of streams.
//
// Any thread may call; the device is the current one of the calling thread. Streams are native handles
// (VirtualGuardImpl::getStreamNativeHandle). Errors are ringdp::Error. Nothing here waits for the device but release().
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpu/library.h"

namespace ringdp::backend {

class DeviceCore {
 public:
  virtual ~DeviceCore() = default;

  // Host memory that the device copies from and to by itself, and whose words it can wait for.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;

  // In the order of a stream: one of both is such host memory; the function runs on a thread of the device's and must not
  // wait; the stream goes on once the word, in such host memory, is 1 or above.
  virtual void copy(void* to, const void* from, size_t bytes, void* stream) = 0;
  virtual void call(void* stream, void (*function)(void*), void* argument) = 0;
  virtual void await(void* stream, const uint32_t* word) = 0;

  virtual bool is_capturing(void* stream) = 0;  // records a graph instead of running

  // With which ranks share its memory and run collectives on it.
  virtual const gpu::Functions& functions() const = 0;
};

}  // namespace ringdp::backend
