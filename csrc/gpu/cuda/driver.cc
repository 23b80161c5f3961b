#include "gpu/cuda/driver.h"

#include <string>

#include "gpu/cuda/errors.h"

namespace ringdp::gpu {
namespace {

constexpr unsigned kInterface = 12000;  // CUDA 12.0: stream memory operations of the second kind, without their suffix

cudaError_t find(const char* name, void** entry) {
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t result = cudaGetDriverEntryPointByVersion(name, entry, kInterface, cudaEnableDefault, &found);
  if (result != cudaSuccess) return result;
  return found == cudaDriverEntryPointSuccess && *entry != nullptr ? cudaSuccess : cudaErrorSymbolNotFound;
}

}  // namespace

void* driver_entry(const char* name) {
  void* entry = nullptr;
  check(std::string("looking up ") + name + " in the CUDA driver", find(name, &entry),
        "a newer driver has it");
  return entry;
}

bool driver_has(const char* name) {
  void* entry = nullptr;
  const bool there = find(name, &entry) == cudaSuccess;
  cudaGetLastError();
  return there;
}

}  // namespace ringdp::gpu
