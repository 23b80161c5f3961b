#include "backend/device/native_job.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>

#include "backend/device/overseer.h"

namespace ringdp::backend {

NativeJob::NativeJob(std::shared_ptr<NativeLane> lane, std::chrono::milliseconds timeout, bool captured)
    : CallOnDevice(lane->lane(), captured ? lane->captures() : lane->stream()),
      native_(std::move(lane)),
      timeout_(timeout),
      captured_(captured),
      number_(native_->next_number()) {}

void NativeJob::enqueue(const std::function<void()>& after, const std::string& what) {
  const c10::DeviceGuard device(lane_->device());
  c10::Event callers(lane_->device().type());
  callers.record(lane_->callers_stream());
  const c10::StreamGuard guard(stream_);
  callers.block(stream_);
  const NativeLane::Queueing queueing(*native_);  // the lane is looked after from here on, and while it is watched
  Overseer::instance().look_after(native_);
  queue();
  if (after) after();
  done_->record(stream_);
  if (captured_) {
    const uint64_t first = launches_.front()->stream_epoch, last = launches_.back()->stream_epoch;
    native_->keep({what + " of a graph", first, last, timeout_, memory_});
  } else {
    native_->watch({what, Deadline::after(timeout_ + ranks().grace()), Deadline::Clock::now(), done_, std::move(launches_)});
  }
}

uint64_t NativeJob::deadline_ns() const {
  return static_cast<uint64_t>(std::max<int64_t>(std::chrono::nanoseconds(timeout_).count(), 1));
}

void NativeJob::await_checked() const {
  if (!captured_) ranks().await_checked(number_, stream());
}

void NativeJob::copy(void* to, const void* from, int64_t bytes) const {
  if (bytes > 0) lane_->core().copy(to, from, static_cast<size_t>(bytes), stream());
}

void NativeJob::record(const std::vector<at::Tensor>& tensors) const {
  for (const at::Tensor& tensor : tensors) {
    if (!native_->shares(tensor)) lane_->record(tensor, stream_);
  }
}

// Asked in this order: what is over while nothing has failed was not poisoned. What is captured is never over.
bool NativeJob::given_up() const {
  if (captured_) return ranks().given_up();
  if (is_good_.load(std::memory_order_acquire)) return false;
  const bool over = done();
  if (ranks().given_up()) {
    native_->look();  // a kernel may have given up, which the group does not know yet
    return true;
  }
  if (over) is_good_.store(true, std::memory_order_release);
  return false;
}

void NativeJob::collective_ended(bool failed) {
  if (failed) ranks().give_up();
  ranks().checked(number_);
}

}  // namespace ringdp::backend
