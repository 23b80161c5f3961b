#include "device/torch/device_queue.h"

#include <c10/core/DeviceGuard.h>

#include "base/log.h"
#include "device/runtime/peer_memory.h"

namespace ringdp::backend {
namespace {

// The call whose launch wrote the record; null when it has finished.
const WatchedCall* call_of(const std::list<WatchedCall>& calls, const gpu::Expired& record) {
  for (const WatchedCall& call : calls) {
    for (const gpu::Launched& launch : call.launches) {
      if (launch.epoch == record.launch) return &call;
    }
  }
  return nullptr;
}

}  // namespace

QueueStreams::QueueStreams(StreamPool& pool) : calls(pool.device(), pool.core()), copies(pool.device(), pool.core()) {
  pool.stock_events(calls.stream());
}

DeviceQueue::DeviceQueue(std::shared_ptr<StreamPool> pool, std::shared_ptr<comm::Group> group,
                         std::unique_ptr<gpu::DeviceRanks> ranks, std::unique_ptr<const QueueStreams> streams)
    : pool_(std::move(pool)), group_(std::move(group)), ranks_(std::move(ranks)), streams_(std::move(streams)) {}

gpu::SymmetricBuffers* DeviceQueue::buffers() const {
  const gpu::PeerMemory* const sharing = ranks_->sharing();
  return sharing ? sharing->buffers() : nullptr;
}

bool DeviceQueue::shares(const at::Tensor& tensor) const {
  return buffers() != nullptr && buffers()->holds(tensor.const_data_ptr());
}

gpu::BufferRef DeviceQueue::buffer_of(const at::Tensor& tensor, const plan::Problem& problem) const {
  if (buffers() == nullptr || !tensor.is_contiguous() || !ranks_->sharing()->cut_in_buffer(problem)) return {};
  return buffers()->find(tensor.const_data_ptr(), static_cast<int64_t>(tensor.nbytes())).value_or(gpu::BufferRef{});
}

const c10::Stream& DeviceQueue::captures() {
  if (!captures_) captures_.emplace(pool_->device(), pool_->core());
  return captures_->stream();
}

void DeviceQueue::watch(WatchedCall call) {
  const std::lock_guard lock(mutex_);
  drop_finished(/*only_late=*/false);
  in_flight_.push_back(std::move(call));
}

void DeviceQueue::keep(Captured call) {
  const std::lock_guard lock(mutex_);
  captured_.push_back(std::move(call));
}

// Under mutex_. Their events go back to the pool.
void DeviceQueue::drop_finished(bool only_late) {
  in_flight_.remove_if(
      [&](const WatchedCall& call) { return (!only_late || call.is_late()) && pool_->has_passed(*call.done); });
}

bool DeviceQueue::poll() {
  const c10::DeviceGuard device(pool_->device());  // querying an event needs its device
  check_turns();
  check_record();
  check_deadlines();
  check_stopped_peers();
  check_group();
  check_failure();
  const std::lock_guard lock(mutex_);
  if (left_) drop_finished(/*only_late=*/false);
  return queueing_ > 0 || !in_flight_.empty() || (!captured_.empty() && !left_);
}

void DeviceQueue::check_turns() {
  const std::lock_guard lock(mutex_);
  const uint32_t last = ranks_->turn();
  for (WatchedCall& call : in_flight_) {
    if (!call.turn && static_cast<int32_t>(last - call.number) >= 0) call.turn = Deadline::Clock::now();
  }
}

// Also when a peer has aborted, which ends only the waits of its own streams.
void DeviceQueue::check_group() {
  if (group_->error() || ranks_->aborted()) ranks_->abort();
}

// NCCL may fail before the group does.
void DeviceQueue::check_failure() {
  const std::string failure = ranks_->poll();
  if (failure.empty() || group_->error()) return;
  group_->fail(Error(ErrorKind::kInternal, "group " + group_->name() + ": a collective on devices failed: NCCL: " +
                                               failure + "; NCCL_DEBUG=WARN prints more"));
  ranks_->abort();
}

// SPIN: a kernel has reached its deadline, and has aborted its own device.
void DeviceQueue::check_record() {
  const auto record = ranks_->expired();
  if (record && !group_->error()) group_->fail(timed_out(*record));
}

Error DeviceQueue::timed_out(const gpu::Expired& record) const {
  std::string what = "a collective on devices";
  double seconds = 0;
  {
    const std::lock_guard lock(mutex_);
    if (const WatchedCall* const call = call_of(in_flight_, record)) {
      what = call->what;
      seconds = call->seconds();
    }
    for (const Captured& call : captured_) {
      if (record.launch < call.first_launch || record.launch > call.last_launch) continue;
      what = call.what;
      seconds = std::chrono::duration<double>(call.timeout).count();
    }
  }
  return group_->timed_out_on_device(what, record.peer, seconds, record.step);
}

// STREAM, and kernels that have not come to a wait.
void DeviceQueue::check_deadlines() {
  std::optional<Error> error;
  {
    const std::lock_guard lock(mutex_);
    drop_finished(/*only_late=*/true);
    if (in_flight_.empty() || !in_flight_.front().is_late()) return;
    error = timed_out(in_flight_.front());
  }
  group_->fail(*error);
  ranks_->abort();  // also for a destroyed group, which cannot fail any more
  const std::lock_guard lock(mutex_);
  if (!in_flight_.empty()) ranks_->release(in_flight_.back().number);  // the driver may be what is stuck
}

// Under mutex_.
Error DeviceQueue::timed_out(const WatchedCall& call) const {
  std::optional<gpu::Expired> waits;
  for (const gpu::Launched& launch : call.launches) {
    if (!waits) waits = ranks_->waits_for(launch);
  }
  return group_->timed_out_on_device(call.what, waits ? waits->peer : -1, call.seconds(), waits ? waits->step : -1);
}

// A slow device is not reported before the deadline; a peer whose process is stopped is.
void DeviceQueue::check_stopped_peers() {
  std::string what;
  {
    const std::lock_guard lock(mutex_);
    if (reported_late_ || in_flight_.empty()) return;
    const WatchedCall& oldest = in_flight_.front();
    if (!oldest.turn || group_->is_short(oldest.seconds())) return;
    what = oldest.what;
  }
  const std::string stopped = group_->stopped_peers();
  if (stopped.empty()) return;
  const std::lock_guard lock(mutex_);
  drop_finished(/*only_late=*/false);
  if (in_flight_.empty() || reported_late_) return;
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
  has_stayed_ ? ranks_->sharing()->stay() : ranks_->teardown();  // only ranks that share memory can capture
}

}  // namespace ringdp::backend
