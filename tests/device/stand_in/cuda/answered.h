// What every function of the CUDA interface does with a Refusal: its number is the answer, and the thread's last error.
#pragma once
#include <utility>

#include "stand_in/machine.h"
#include "stand_in/stream.h"

namespace stand_in {

inline thread_local cudaError_t last_error = cudaSuccess;

// Host functions may call nothing, and without a device there is nothing to call.
template <class Text>
cudaError_t answered(Text&& text) {
  try {
    if (is_in_host_function()) throw Refusal(cudaErrorNotPermitted, "a call inside a host function");
    current_device();
    std::forward<Text>(text)();
    return cudaSuccess;
  } catch (const Refusal& refusal) {
    return last_error = refusal.code;
  }
}

// For what takes or frees memory.
template <class Text>
cudaError_t answered_outside_captures(Text&& text) {
  return answered([&] {
    refuse_beside_captures();
    text();
  });
}

}  // namespace stand_in
