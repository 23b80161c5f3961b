// How many devices there are, and what each can do.
#include <cstring>

#include "device/cuda/driver.h"
#include "device/runtime/ringdp_gpu.h"

namespace ringdp::gpu {
namespace {

bool means_no_device(cudaError_t result) {
  switch (result) {
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInitializationError:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorStubLibrary:
      return true;
    default:
      return false;
  }
}

void count_devices(int* count) {
  refuse_null("rd_gpu_count", "count", count);
  *count = 0;
  const cudaError_t result = cudaGetDeviceCount(count);
  if (!means_no_device(result)) return check("cudaGetDeviceCount", result);
  *count = 0;
  cudaGetLastError();
  set_sentence(std::string("no CUDA device: ") + cudaGetErrorString(result) + " (" + std::to_string(result) + ")");
}

// Drivers before CUDA 12.4 do not know the attribute, nor does their header.
bool is_shared_by_mps(int device) {
  constexpr auto kMpsEnabled = static_cast<CUdevice_attribute>(133);
  int value = 0;
  const auto ask = driver_function<decltype(&cuDeviceGetAttribute)>("cuDeviceGetAttribute");
  const CUresult result = ask(&value, kMpsEnabled, device);
  if (result != CUDA_ERROR_INVALID_VALUE) check("cuDeviceGetAttribute", result);
  return value != 0;
}

// Of the instance where the GPU is partitioned: cudaGetDeviceProperties gives all instances the GPU's.
void copy_uuid(int device, unsigned char (&out)[16]) {
  CUuuid uuid;
  check("cuDeviceGetUuid", driver_function<decltype(&cuDeviceGetUuid)>("cuDeviceGetUuid")(&uuid, device));
  static_assert(sizeof out == sizeof uuid);
  std::memcpy(out, &uuid, sizeof out);
}

bool waits_on_streams(int device) {
  return driver_has("cuStreamBatchMemOp") && has_attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device);
}

void describe(int device, rd_gpu_device* out) {
  refuse_null("rd_gpu_describe", "out", out);
  cudaDeviceProp facts;
  check("cudaGetDeviceProperties(" + std::to_string(device) + ")", cudaGetDeviceProperties(&facts, device),
        "rd_gpu_count says how many devices there are");
  *out = {};
  std::strncpy(out->name, facts.name, sizeof out->name - 1);  // *out is zeroed, so a truncated name is still terminated
  copy_uuid(device, out->uuid);
  out->mig = std::strstr(facts.name, " MIG ") != nullptr;  // "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
  out->mps = is_shared_by_mps(device);
  out->multiprocessors = facts.multiProcessorCount;
  out->major = facts.major;
  out->minor = facts.minor;
  out->waits_on_streams = waits_on_streams(device);
  out->shares_fds = has_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device);
  out->memory_bytes = facts.totalGlobalMem;
}

}  // namespace
}  // namespace ringdp::gpu

int rd_gpu_count(int* count) {
  return ringdp::gpu::guarded([&] { ringdp::gpu::count_devices(count); });
}

int rd_gpu_describe(int device, rd_gpu_device* out) {
  return ringdp::gpu::guarded([&] { ringdp::gpu::describe(device, out); });
}
