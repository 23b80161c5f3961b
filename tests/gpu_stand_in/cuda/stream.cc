// Streams of the runtime interface.
#include <cstring>

#include "cuda/answered.h"

using namespace stand_in;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return answered([&] {
    if (flags != cudaStreamNonBlocking) throw Refusal(cudaErrorNotSupported, "a stream that the null stream waits for");
    *stream = create_stream(current_device());
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return answered([&] { destroy_stream(stream); });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return answered([&] { known(stream).synchronize(); });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return answered([&] { exchange_capture_mode(*mode); });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return answered([&] {
    *status = known(stream).capture() ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return answered([&] { copy(known(stream), to, from, bytes); });
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return answered([&] { known(stream).push([=] { std::memset(memory, value, bytes); }); });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  return answered([&] { call_on_host(known(stream), function, argument); });
}
