// Puts one kernel on a stream.
#pragma once
#include <cuda_runtime.h>

#include <string>

#include "gpu/cuda/errors.h"
#include "gpu/cuda/kernel_table.h"

namespace ringdp::gpu {

template <class Argument>
void launch(const char* what, const void* kernel, int blocks, const Argument& argument, cudaStream_t stream) {
  void* arguments[] = {const_cast<Argument*>(&argument)};
  const auto typed = reinterpret_cast<void (*)(Argument)>(const_cast<void*>(kernel));
  check(std::string("launching ") + what, cudaLaunchKernel(typed, dim3(blocks), dim3(kThreads), arguments, 0, stream),
        "the stream must be of the thread's current device");
}

// As many blocks as the current device can hold at once.
int blocks_of_device(const void* kernel);

// Whether the stream records a graph instead of running.
bool is_capturing(cudaStream_t stream);

}  // namespace ringdp::gpu
