#include "reducer/comm_hook.h"

#include <ATen/ATen.h>

#include <chrono>
#include <future>
#include <memory>

#include "backend/gil.h"
#include "base/deadline.h"

namespace ringdp::reducer {
namespace {

// Returns whether the Future is done before the deadline. In Python's main thread it throws what a signal handler
// raises.
bool wait_for(c10::ivalue::Future& future, Deadline deadline) {
  if (future.completed()) return true;
  const auto end = std::make_shared<std::promise<void>>();
  auto done = end->get_future();
  future.addCallback([end](c10::ivalue::Future&) { end->set_value(); }, /*uses_future=*/false);
  const bool main = backend::runs_signal_handlers();
  const auto is_done_soon = [&] { return done.wait_for(backend::kSignalsEvery) == std::future_status::ready; };
  while (!is_done_soon()) {
    if (deadline.passed()) return false;
    if (main) backend::run_signal_handlers();
  }
  return true;
}

void wait_until_done(c10::ivalue::Future& future, std::chrono::milliseconds patience) {
  TORCH_CHECK(
      wait_for(future, Deadline::after(patience)),
      "DistributedDataParallel: the communication hook's Future of a bucket is not done after ",
      std::chrono::duration<double>(patience).count(),
      " s, twice the timeout of the process group. A hook is called for a bucket only when its Future for the previous "
      "bucket is done, so that collectives in its callbacks have the same order on all ranks: its Futures must not "
      "wait for later buckets. If another rank is late instead, raise the timeout");
}

class HookReduction final : public Reduction {
 public:
  HookReduction(c10d::CommHookInterface& hook, c10::intrusive_ptr<c10::ivalue::Future> future, int64_t elements,
                std::chrono::milliseconds patience)
      : hook_(hook), future_(std::move(future)), end_(*future_), elements_(elements), patience_(patience) {}
  at::Tensor finish() override {
    wait_until_done(*future_, patience_);
    future_->wait();  // returns at once, and lets the current streams wait for what devices still compute
    end_.get();
    const at::Tensor result = hook_.parseHookResult(future_->value());  // throws the error of the Future
    TORCH_CHECK(result.numel() == elements_, "Communication hook: its Future holds ", result.numel(),
                " elements, and should hold ", elements_);
    return result;
  }
  int64_t ended_ns() const override { return end_.get(); }

 private:
  c10d::CommHookInterface& hook_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  const EndTime end_;
  const int64_t elements_;
  const std::chrono::milliseconds patience_;
};

}  // namespace

std::unique_ptr<Reduction> CommHook::start(const Bucket& bucket, const at::Tensor& flat, size_t number, size_t count,
                                           int64_t expected) {
  wait();
  c10d::GradBucket shown = as_grad_bucket(bucket, flat, number, count);
  latest_ = hook_->runHook(shown);
  return std::make_unique<HookReduction>(*hook_, latest_, expected, patience_);
}

// An error of the Future is thrown by its reduction, not here.
void CommHook::wait() {
  const auto latest = std::move(latest_);
  if (latest) wait_until_done(*latest, patience_);
}

}  // namespace ringdp::reducer
