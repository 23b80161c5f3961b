// Devices, errors and kernels of the runtime interface.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "cuda/answered.h"
#include "stand_in/kernel.h"
#include "stand_in/memory.h"

using namespace stand_in;

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorDeviceUninitialized:
      return "invalid device context";
    case cudaErrorMapBufferObjectFailed:
      return "mapping of buffer object failed";
    case cudaErrorAlreadyMapped:
      return "resource already mapped";
    case cudaErrorPeerAccessUnsupported:
      return "peer access is not supported between these two devices";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorPeerAccessAlreadyEnabled:
      return "peer access is already enabled";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorIllegalState:
      return "the operation cannot be performed in the present state";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorSymbolNotFound:
      return "named symbol not found";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    case cudaErrorHostMemoryNotRegistered:
      return "pointer does not correspond to a registered memory region";
    case cudaErrorNotPermitted:
      return "operation not permitted";
    case cudaErrorNotSupported:
      return "operation not supported";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    default:
      return "unrecognized error code";
  }
}

cudaError_t cudaGetDeviceCount(int* count) {
  return answered([&] { *count = machine().devices; });
}

cudaError_t cudaGetDevice(int* device) {
  return answered([&] { *device = current_device(); });
}

cudaError_t cudaSetDevice(int device) {
  return answered([&] { set_device(device); });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* facts, int device) {
  return answered([&] {
    if (device < 0 || device >= machine().devices) throw Refusal(cudaErrorInvalidDevice, "there is no such device");
    *facts = {};
    const bool mig = machine().is == "mig";
    std::snprintf(facts->name, sizeof facts->name, "stand-in %d%s", device, mig ? " MIG 1g.1gb" : "");
    ("stand-in " + std::to_string(mig ? 0 : device)).copy(facts->uuid.bytes, sizeof facts->uuid.bytes);
    facts->totalGlobalMem = kDeviceBytes;
    facts->multiProcessorCount = machine().multiprocessors;
    facts->major = 9;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return answered([&] { *value = machine().multiprocessors; });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int other) {
  return answered([&] { *can = machine().peers && device != other; });
}

cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned) {
  return answered_in_context([&] {
    if (!machine().peers) throw Refusal(cudaErrorPeerAccessUnsupported, "STAND_IN_LACKS has peers");
    if (!let_reach_peer(current_device(), other)) throw Refusal(cudaErrorPeerAccessAlreadyEnabled, "enabled before");
  });
}

namespace {

// A kernel is a function of a library; the runtime knows only those that it was told of when that was loaded.
void refuse_no_kernel(const void* kernel) {
  Dl_info found;
  if (dladdr(kernel, &found) == 0) throw Refusal(cudaErrorInvalidResourceHandle, "this is no kernel");
}

}  // namespace

// Host threads have neither registers nor spills.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return answered_in_context([&] {
    refuse_no_kernel(kernel);
    *attributes = {};
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int, size_t) {
  return answered_in_context([&] {
    refuse_no_kernel(kernel);
    *blocks = kBlocksOfMultiprocessor;
  });
}

cudaError_t launch_on_host_threads(unsigned blocks, size_t argument_bytes, std::function<void()> body,
                                   cudaStream_t stream) {
  return answered_in_context([&] { launch(known(stream), static_cast<int>(blocks), argument_bytes, body); });
}

// Memory of the runtime interface.

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return answered_outside_captures([&] { *memory = allocate(current_device(), bytes); });
}

cudaError_t cudaFree(void* memory) {
  return answered_outside_captures([&] { free_memory(memory); });
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  return answered_in_context([&] {
    const IpcHandle exported = export_memory(memory);
    static_assert(sizeof exported <= sizeof *handle);
    *handle = {};
    std::memcpy(handle, &exported, sizeof exported);
  });
}

cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  return answered_outside_captures([&] {
    IpcHandle exported;
    std::memcpy(&exported, &handle, sizeof exported);
    *memory = import_memory(current_device(), exported);
  });
}

cudaError_t cudaIpcCloseMemHandle(void* memory) {
  return answered_outside_captures([&] { close_import(memory); });
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return answered_outside_captures([&] { *memory = allocate_host(bytes); });
}

cudaError_t cudaFreeHost(void* memory) {
  return answered_outside_captures([&] { free_host(memory); });
}

cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  return answered_outside_captures([&] { register_host(memory, bytes); });
}

cudaError_t cudaHostUnregister(void* memory) {
  return answered_outside_captures([&] { unregister_host(memory); });
}

cudaError_t cudaHostGetDevicePointer(void** address, void* memory, unsigned) {
  return answered_in_context([&] { *address = device_address_of(memory); });
}

// Streams of the runtime interface.

namespace {

Stream* new_stream(unsigned flags) {
  if (flags != cudaStreamNonBlocking) throw Refusal(cudaErrorNotSupported, "a stream that the null stream waits for");
  return create_stream(current_device());
}

}  // namespace

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return answered_in_context([&] { *stream = new_stream(flags); });
}

// Priorities are taken and not heeded.
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  return answered_in_context([&] {
    *lowest = 0;
    *highest = -5;
  });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return answered_in_context([&] { *stream = new_stream(flags); });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return answered_in_context([&] { destroy_stream(stream); });
}

// It fails for what was queued, which is over then.
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return answered_in_context(
      [&] {
        known(stream).synchronize();
        note("cudaStreamSynchronize");
      },
      nullptr);
}

// What is not over is the thread's last error, too.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return answered_in_context(
      [&] {
        refuse_beside_captures();
        if (!known(stream).idle()) throw Refusal(cudaErrorNotReady, "what was queued is not over");
        note("cudaStreamQuery");
      },
      nullptr);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return answered([&] { exchange_capture_mode(*mode); });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return answered_in_context(
      [&] { *status = known(stream).capture() ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone; });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return answered_in_context([&] { copy(known(stream), to, from, bytes); });
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return answered_in_context([&] {
    check_within_one(memory, bytes);
    known(stream).push([=] { std::memset(memory, value, bytes); });
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  return answered_in_context([&] { call_on_host(known(stream), function, argument); });
}
