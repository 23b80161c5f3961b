// When a collective of any backend ended, which c10d's Work does not say.
#pragma once
#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <cstdint>
#include <memory>

namespace ringdp::reducer {

// Copies share one time. get() is now_ns() at the end, or at the first call of get() where the end was not seen: for a
// device's collectives, which end on a stream, and works without a Future.
class EndTime {
 public:
  EndTime() = default;
  explicit EndTime(c10d::Work& work);
  explicit EndTime(c10::ivalue::Future& future);
  int64_t get() const;

 private:
  std::shared_ptr<std::atomic<int64_t>> ns_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace ringdp::reducer
