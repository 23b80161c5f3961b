#include "device/cuda/driver.h"

#include <cstdio>
#include <string>

#include "device/runtime/ringdp_gpu.h"

namespace ringdp::gpu {
namespace {

constexpr size_t kSentenceBytes = 1024;
thread_local char sentence_of_thread[kSentenceBytes] = "";

[[noreturn]] void fail(const std::string& call, const std::string& said, int code, const char* way_out) {
  const std::string then = *way_out ? std::string("; ") + way_out : std::string();
  throw Failure(code, call + ": " + said + " (" + std::to_string(code) + ")" + then);
}

constexpr unsigned kInterface = 12000;  // CUDA 12.0: stream memory operations of the second kind, without their suffix

cudaError_t find(const char* name, void** entry) {
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t result = cudaGetDriverEntryPointByVersion(name, entry, kInterface, cudaEnableDefault, &found);
  if (result != cudaSuccess) return result;
  return found == cudaDriverEntryPointSuccess && *entry != nullptr ? cudaSuccess : cudaErrorSymbolNotFound;
}

}  // namespace

void set_sentence(const std::string& sentence) noexcept {
  std::snprintf(sentence_of_thread, kSentenceBytes, "%s", sentence.c_str());
}

void check(const std::string& call, cudaError_t result, const char* way_out) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // clears it, else the next launch on this thread would report it again
  fail(call, cudaGetErrorString(result), result, way_out);
}

void check(const std::string& call, CUresult result, const char* way_out) {
  if (result == CUDA_SUCCESS) return;
  const char* said = nullptr;
  void* entry = nullptr;  // without it, too, the call that failed is named
  if (find("cuGetErrorString", &entry) == cudaSuccess) {
    reinterpret_cast<decltype(&cuGetErrorString)>(entry)(result, &said);
  }
  cudaGetLastError();
  fail(call, said ? said : "unknown error", result, way_out);
}

void refuse(const std::string& sentence) { throw Failure(kRefused, sentence); }

void refuse_null(const char* function, const char* argument, const void* value) {
  if (value == nullptr) refuse(std::string(function) + ": " + argument + " is null");
}

void* driver_entry(const char* name) {
  void* entry = nullptr;
  check(std::string("looking up ") + name + " in the CUDA driver", find(name, &entry), "a newer driver has it");
  return entry;
}

bool has_attribute(CUdevice_attribute what, int device) {
  int value = 0;
  const auto ask = driver_function<decltype(&cuDeviceGetAttribute)>("cuDeviceGetAttribute");
  check("cuDeviceGetAttribute", ask(&value, what, device));
  return value != 0;
}

bool driver_has(const char* name) {
  void* entry = nullptr;
  const bool there = find(name, &entry) == cudaSuccess;
  cudaGetLastError();
  return there;
}

}  // namespace ringdp::gpu

int rd_gpu_abi(void) { return RD_GPU_ABI; }

const char* rd_gpu_error(void) { return ringdp::gpu::sentence_of_thread; }
