// Memory of the runtime interface.
#include "stand_in/memory.h"

#include <cstring>

#include "cuda/answered.h"
#include "stand_in/host_memory.h"

using namespace stand_in;

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return answered_outside_captures([&] { *memory = allocate(current_device(), bytes); });
}

cudaError_t cudaFree(void* memory) {
  return answered_outside_captures([&] { free_memory(memory); });
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  return answered([&] {
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
  return answered([&] { *address = device_address_of(memory); });
}
