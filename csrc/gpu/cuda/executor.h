// The two ways to run a rank's steps on a stream. Both return once everything is queued; both throw Failure.
#pragma once
#include <cuda_runtime.h>

#include "gpu/device/work.h"

namespace ringdp::gpu {

// One kernel runs them all.
void run_spinning(const void* kernel, const Work& work, cudaStream_t stream);

// A wait or a post is an operation of the stream, all else a kernel of one step on all multiprocessors.
void run_on_stream(const void* kernel, const Work& work, cudaStream_t stream);

}  // namespace ringdp::gpu
