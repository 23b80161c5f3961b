// The clock of all events: steady_clock in nanoseconds.
#pragma once
#include <chrono>
#include <cstdint>

namespace ringdp::trace {

inline int64_t in_ns(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

inline int64_t now_ns() { return in_ns(std::chrono::steady_clock::now()); }

}  // namespace ringdp::trace
