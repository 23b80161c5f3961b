// Functions of the CUDA driver by name, looked up when they are wanted, so that the library loads without a driver.
//
// Keep what driver_function returns in a static local, if anywhere: where there is no driver it throws, and a static
// whose initialiser throws is initialised again by the next call.
#pragma once

namespace ringdp::gpu {

// Throws Failure where the driver is absent or lacks the function.
void* driver_entry(const char* name);

template <class Function>
Function driver_function(const char* name) {
  return reinterpret_cast<Function>(driver_entry(name));
}

// Whether it is there. Never throws.
bool driver_has(const char* name);

}  // namespace ringdp::gpu
