#include "gpu/cuda/launch.h"

namespace ringdp::gpu {

int blocks_of_device(const void* kernel) {
  int device = 0, multiprocessors = 0, each = 0;
  check("cudaGetDevice", cudaGetDevice(&device));
  check("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  check("cudaOccupancyMaxActiveBlocksPerMultiprocessor",
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, kThreads, 0));
  return multiprocessors * (each > 0 ? each : 1);
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check("cudaStreamIsCapturing", cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace ringdp::gpu
