// Streams, and copies, calls and waits in their order: what staging a tensor through pinned host memory needs.
#include <cuda_runtime.h>

#include "device/cuda/driver.h"
#include "device/cuda/kernel_table.h"
#include "device/runtime/ringdp_gpu.h"

using ringdp::gpu::check;
using ringdp::gpu::driver_function;
using ringdp::gpu::guarded;
using ringdp::gpu::guarded_beside_captures;
using ringdp::gpu::OnDevice;
using ringdp::gpu::refuse_null;

int rd_gpu_stream(int device, void** out) {
  return guarded_beside_captures([&] {
    refuse_null("rd_gpu_stream", "out", out);
    const OnDevice here(device);
    int lowest = 0, highest = 0;
    check("cudaDeviceGetStreamPriorityRange", cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    cudaStream_t stream = nullptr;
    check("cudaStreamCreateWithPriority", cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
    *out = stream;
  });
}

int rd_gpu_swap_capture_mode(int* mode) {
  return guarded([&] {
    refuse_null("rd_gpu_swap_capture_mode", "mode", mode);
    auto swapped = static_cast<cudaStreamCaptureMode>(*mode);
    check("cudaThreadExchangeStreamCaptureMode", cudaThreadExchangeStreamCaptureMode(&swapped));
    *mode = swapped;
  });
}

int rd_gpu_copy(void* to, const void* from, size_t bytes, void* stream) {
  return guarded([&] {
    if (bytes == 0) return;
    refuse_null("rd_gpu_copy", "to", to);
    refuse_null("rd_gpu_copy", "from", from);
    check("cudaMemcpyAsync(" + std::to_string(bytes) + " bytes)",
          cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)));
  });
}

int rd_gpu_call(void* stream, void (*call)(void*), void* argument) {
  return guarded([&] {
    refuse_null("rd_gpu_call", "call", reinterpret_cast<const void*>(call));
    check("cudaLaunchHostFunc", cudaLaunchHostFunc(static_cast<cudaStream_t>(stream), call, argument));
  });
}

namespace {

CUdeviceptr on_device(const uint32_t* host_word) {
  void* word = nullptr;
  check("cudaHostGetDevicePointer", cudaHostGetDevicePointer(&word, const_cast<uint32_t*>(host_word), 0));
  return reinterpret_cast<CUdeviceptr>(word);
}

}  // namespace

int rd_gpu_await(const uint32_t* host_word, uint32_t value, void* stream) {
  return guarded([&] {
    refuse_null("rd_gpu_await", "host_word", host_word);
    static const auto wait = driver_function<decltype(&cuStreamWaitValue32)>("cuStreamWaitValue32");
    check("cuStreamWaitValue32",
          wait(static_cast<CUstream>(stream), on_device(host_word), value, CU_STREAM_WAIT_VALUE_GEQ));
  });
}

int rd_gpu_write(uint32_t* host_word, uint32_t value, void* stream) {
  return guarded([&] {
    refuse_null("rd_gpu_write", "host_word", host_word);
    static const auto write = driver_function<decltype(&cuStreamWriteValue32)>("cuStreamWriteValue32");
    check("cuStreamWriteValue32",
          write(static_cast<CUstream>(stream), on_device(host_word), value, CU_STREAM_WRITE_VALUE_DEFAULT));
  });
}

int rd_gpu_is_capturing(void* stream, int* out) {
  return guarded([&] {
    refuse_null("rd_gpu_is_capturing", "out", out);
    *out = ringdp::gpu::is_capturing(static_cast<cudaStream_t>(stream));
  });
}
