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
  check(std::string("launching ") + what, cudaLaunchKernel(kernel, dim3(blocks), dim3(kThreads), arguments, 0, stream),
        "the stream must be of the thread's current device");
}

// As many blocks as the current device can hold at once.
int blocks_of_device(const void* kernel);

}  // namespace ringdp::gpu
