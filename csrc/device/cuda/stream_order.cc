// Copies, calls and waits in the order of a stream: what staging a tensor through pinned host memory needs.
#include <cuda_runtime.h>

#include "device/cuda/driver.h"
#include "device/cuda/kernel_table.h"
#include "device/runtime/ringdp_gpu.h"

using ringdp::gpu::check;
using ringdp::gpu::driver_function;
using ringdp::gpu::guarded;
using ringdp::gpu::refuse_null;

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

int rd_gpu_await(const uint32_t* host_word, uint32_t value, void* stream) {
  return guarded([&] {
    refuse_null("rd_gpu_await", "host_word", host_word);
    static const auto wait = driver_function<decltype(&cuStreamWaitValue32)>("cuStreamWaitValue32");
    void* word = nullptr;
    check("cudaHostGetDevicePointer", cudaHostGetDevicePointer(&word, const_cast<uint32_t*>(host_word), 0));
    check("cuStreamWaitValue32",
          wait(static_cast<CUstream>(stream), reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WAIT_VALUE_GEQ));
  });
}

int rd_gpu_is_capturing(void* stream, int* out) {
  return guarded([&] {
    refuse_null("rd_gpu_is_capturing", "out", out);
    *out = ringdp::gpu::is_capturing(static_cast<cudaStream_t>(stream));
  });
}
