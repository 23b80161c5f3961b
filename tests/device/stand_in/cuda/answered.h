// What every function of the CUDA interface does with a Refusal: its number is the answer, and the thread's last error.
#pragma once
#include <utility>

#include "stand_in/machine.h"
#include "stand_in/memory.h"
#include "stand_in/stream.h"

namespace stand_in {

inline thread_local cudaError_t last_error = cudaSuccess;

// Host functions may call nothing, and without a device there is nothing to call. `call`: the function, or null
// when it says itself where it may fail.
template <class Text>
cudaError_t answered(Text&& text, const char* call = __builtin_FUNCTION()) {
  try {
    if (is_in_host_function()) throw Refusal(cudaErrorNotPermitted, "a call inside a host function");
    note(call);
    if (is_lost(current_device())) throw Refusal(cudaErrorIllegalAddress, "a kernel has touched what it may not");
    std::forward<Text>(text)();
    return cudaSuccess;
  } catch (const Refusal& refusal) {
    return last_error = refusal.code;
  }
}

// For what needs a context, which is made where the thread has none.
template <class Text>
cudaError_t answered_in_context(Text&& text, const char* call = __builtin_FUNCTION()) {
  return answered(
      [&] {
        need_context();
        text();
      },
      call);
}

// For what takes or frees memory.
template <class Text>
cudaError_t answered_outside_captures(Text&& text, const char* call = __builtin_FUNCTION()) {
  return answered_in_context(
      [&] {
        refuse_beside_captures();
        wait_for_copies_to_host();
        text();
      },
      call);
}

}  // namespace stand_in
