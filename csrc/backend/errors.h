// Turns ringdp errors into torch's: all are torch.distributed.DistBackendError (a RuntimeError) in Python, and the
// message starts with the kind ("PeerLost: ...").
#pragma once
#include <exception>
#include <string>
#include <utility>

#include "backend/process.h"
#include "base/error.h"

namespace ringdp::backend {

[[noreturn]] void throw_torch(const Error& error);
[[noreturn]] void refuse(const std::string& message);  // InvalidArgument, as a torch error

// The first line of its message; torch adds a stack below it.
std::string first_line(const std::exception& error);

// The same exception as a torch one; null stays null.
std::exception_ptr to_torch(std::exception_ptr error);

// Runs f for a caller; a ringdp error leaves as a torch one.
template <class F>
auto guarded(F&& f) -> decltype(f()) {
  try {
    return std::forward<F>(f)();
  } catch (const Error& error) {
    stay_if_the_process_ends();
    throw_torch(error);
  }
}

}  // namespace ringdp::backend
