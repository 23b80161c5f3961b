// Test support: what a call throws.
#pragma once
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace ringdp::transport {

inline Error thrown(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorKind::kAborted, "");
}

inline ErrorKind kind_thrown(const std::function<void()>& call) { return thrown(call).kind(); }

}  // namespace ringdp::transport
