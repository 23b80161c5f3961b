#include "device/torch/device_queue.h"

#include <c10/core/DeviceGuard.h>

#include "base/log.h"
#include "device/runtime/peer_memory.h"

namespace ringdp::backend {
namespace {

double seconds_of(const UnderWay& call) { return seconds_since(call.since); }

// The call to whose launch a record belongs; null when it is over.
const UnderWay* call_of(const std::list<UnderWay>& calls, const gpu::Expired& record) {
  for (const UnderWay& call : calls) {
    for (const auto& launch : call.launches) {
      if (launch->stream_epoch == record.launch) return &call;
    }
  }
  return nullptr;
}

}  // namespace

DeviceQueue::DeviceQueue(std::shared_ptr<StreamPool> pool, std::shared_ptr<comm::Group> group,
                         std::unique_ptr<gpu::DeviceRanks> ranks)
    : pool_(std::move(pool)),
      group_(std::move(group)),
      ranks_(std::move(ranks)),
      stream_(c10::impl::VirtualGuardImpl(pool_->device().type())
                  .getStreamFromGlobalPool(pool_->device(), /*isHighPriority=*/true)) {}

gpu::Segments* DeviceQueue::segments() const {
  const gpu::PeerMemory* const sharing = ranks_->sharing();
  return sharing ? sharing->segments() : nullptr;
}

bool DeviceQueue::shares(const at::Tensor& tensor) const {
  return segments() != nullptr && segments()->holds(tensor.const_data_ptr());
}

gpu::SegmentRef DeviceQueue::segment_of(const at::Tensor& tensor, const plan::Problem& problem) const {
  if (segments() == nullptr || !tensor.is_contiguous() || !ranks_->sharing()->cut_in_segment(problem)) return {};
  return segments()->find(tensor.const_data_ptr(), static_cast<int64_t>(tensor.nbytes())).value_or(gpu::SegmentRef{});
}

const c10::Stream& DeviceQueue::captures() {
  if (!captures_) {
    captures_ = c10::impl::VirtualGuardImpl(pool_->device().type())
                    .getStreamFromGlobalPool(pool_->device(), /*isHighPriority=*/true);
  }
  return *captures_;
}

void DeviceQueue::watch(UnderWay call) {
  const std::lock_guard lock(mutex_);
  let_go();
  under_way_.push_back(std::move(call));
}

void DeviceQueue::keep(Captured call) {
  const std::lock_guard lock(mutex_);
  captured_.push_back(std::move(call));
}

void DeviceQueue::let_go() {
  under_way_.remove_if([](const UnderWay& call) { return call.done->query(); });
}

bool DeviceQueue::look() {
  const c10::DeviceGuard device(pool_->device());  // asking for an event needs its device
  look_at_record();
  look_at_deadlines();
  look_at_stopped_peers();
  look_at_group();
  look_at_failure();
  const std::lock_guard lock(mutex_);
  if (left_) let_go();
  return queueing_ > 0 || !under_way_.empty() || (!captured_.empty() && !left_);
}

// A peer that aborts releases its own streams' waits only.
void DeviceQueue::look_at_group() {
  if (group_->error() || ranks_->aborted()) ranks_->abort();
}

// NCCL, which fails by itself.
void DeviceQueue::look_at_failure() {
  const std::string failure = ranks_->look();
  if (failure.empty() || group_->error()) return;
  group_->fail(Error(ErrorKind::kInternal, "group " + group_->name() + ": a collective on devices failed: NCCL: " +
                                               failure + "; NCCL_DEBUG=WARN makes it say more"));
  ranks_->abort();
}

// SPIN: a kernel has waited for too long, and has told its own device to abort.
void DeviceQueue::look_at_record() {
  const auto record = ranks_->expired();
  if (record && !group_->error()) group_->fail(timed_out(*record));
}

Error DeviceQueue::timed_out(const gpu::Expired& record) const {
  std::string what = "a collective on devices";
  double seconds = 0;
  {
    const std::lock_guard lock(mutex_);
    if (const UnderWay* const call = call_of(under_way_, record)) {
      what = call->what;
      seconds = seconds_of(*call);
    }
    for (const Captured& call : captured_) {
      if (record.launch < call.first_launch || record.launch > call.last_launch) continue;
      what = call.what;
      seconds = std::chrono::duration<double>(call.timeout).count();
    }
  }
  return group_->timed_out_on_device(what, record.peer, seconds, record.step);
}

// STREAM, and what never came to its turn.
void DeviceQueue::look_at_deadlines() {
  std::optional<Error> error;
  {
    const std::lock_guard lock(mutex_);
    under_way_.remove_if([](const UnderWay& call) { return call.deadline.passed() && call.done->query(); });
    if (under_way_.empty() || !under_way_.front().deadline.passed()) return;
    error = timed_out(under_way_.front());
  }
  group_->fail(*error);
  ranks_->abort();  // a group that was left fails no more
}

// Under mutex_.
Error DeviceQueue::timed_out(const UnderWay& call) const {
  std::optional<gpu::Expired> waits;
  for (const auto& launch : call.launches) {
    if (!waits) waits = ranks_->waits_for(*launch);
  }
  return group_->timed_out_on_device(call.what, waits ? waits->peer : -1, seconds_of(call), waits ? waits->step : -1);
}

// A device may be busy for as long as it likes; a peer whose process is stopped is reported.
void DeviceQueue::look_at_stopped_peers() {
  std::string what;
  {
    const std::lock_guard lock(mutex_);
    if (reported_late_ || under_way_.empty()) return;
    const UnderWay& oldest = under_way_.front();
    if (group_->is_short(seconds_of(oldest))) return;
    what = oldest.what;
  }
  const std::string stopped = group_->stopped_peers();
  if (stopped.empty()) return;
  const std::lock_guard lock(mutex_);
  let_go();
  if (under_way_.empty() || reported_late_) return;
  reported_late_ = true;
  log_line(LogLevel::kWarning, "rank " + std::to_string(group_->rank()) + "/" + std::to_string(group_->world()),
           what + " waits on the device: " + stopped);
}

void DeviceQueue::leave() {
  const std::lock_guard lock(mutex_);
  left_ = true;
}

void DeviceQueue::teardown() {
  {
    const std::lock_guard lock(mutex_);
    has_stayed_ = !captured_.empty();
  }
  has_stayed_ ? ranks_->sharing()->stay() : ranks_->teardown();  // only ranks that share memory capture
}

}  // namespace ringdp::backend
