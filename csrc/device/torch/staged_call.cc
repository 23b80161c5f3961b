#include "device/torch/staged_call.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <limits>

#include "backend/errors.h"
#include "backend/process.h"
#include "backend/tensors.h"

namespace ringdp::backend {
namespace {

using Flag = std::shared_ptr<std::atomic<bool>>;

void open_gate(void* argument) {
  const std::unique_ptr<Flag> here(static_cast<Flag*>(argument));
  (*here)->store(true, std::memory_order_release);
  runtime().engine.kick();
}

at::Tensor new_word(StreamPool& pool) {
  at::Tensor word = pool.pinned({1}, at::kInt);
  *word.mutable_data_ptr<int32_t>() = 0;
  return word;
}

}  // namespace

void RunningCall::block_callers_stream() const {
  if (is_captured() && !pool_->is_capturing()) {
    refuse(
        "the call was captured into a graph: wait for it within the capture, and let what reads its results follow "
        "the graph's replay");
  }
  const c10::DeviceGuard here(device());
  done_->block(pool_->callers_stream());
}

bool RunningCall::done() const {
  if (is_captured()) return true;
  const c10::DeviceGuard here(device());
  return pool_->has_passed(*done_);
}

bool holds_numbers_with_nan(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type());
}

StagedCall::StagedCall(std::shared_ptr<StreamPool> pool, const c10::Stream& stream)
    : RunningCall(std::move(pool), stream), word_(new_word(*pool_)) {}

void StagedCall::bring(const std::vector<Copy>& inputs, std::vector<Copy> results) {
  results_ = std::move(results);
  const c10::Stream caller = pool_->callers_stream(), stream = pool_->inputs();
  const c10::DeviceGuard device(pool_->device());
  const auto callers = pool_->event();
  callers->record(caller);
  callers->block(stream);
  if (!results_.empty()) callers->block(stream_);
  if (inputs.empty() && !results_.empty()) return;
  const c10::StreamGuard guard(stream);
  std::vector<at::Tensor> pinned;
  for (const Copy& input : inputs) {
    const at::Tensor memory = flat(input.tensor);
    pool_->core().copy(input.memory.data_ptr(), memory.const_data_ptr(), memory.nbytes(), pool_->native(stream));
    pool_->record(input.tensor, stream);
    pinned.push_back(input.memory);
  }
  const auto copied = pool_->event();
  copied->record(stream);
  pool_->hold(copied, std::move(pinned));
  here_ = std::make_shared<std::atomic<bool>>(false);
  auto argument = std::make_unique<Flag>(here_);
  pool_->core().call(pool_->native(stream), &open_gate, argument.get());
  argument.release();  // open_gate() has it
}

comm::Ready StagedCall::ready() const {
  if (!here_) return {};
  return [here = here_] { return here->load(std::memory_order_acquire); };
}

void StagedCall::enqueue(const std::function<void()>& after, const std::string&) {
  const c10::DeviceGuard device(pool_->device());
  const c10::StreamGuard guard(stream_);
  void* const native = pool_->native(stream_);
  std::vector<at::Tensor> pinned{word_};
  const auto* const word = reinterpret_cast<const uint32_t*>(word_.const_data_ptr<int32_t>());
  if (!results_.empty()) pool_->core().await(native, word);
  for (const Copy& result : results_) {
    const at::Tensor memory = flat_target(result.tensor, "");
    pool_->core().copy(memory.data_ptr(), result.memory.const_data_ptr(), memory.nbytes(), native);
    copy_back(memory, result.tensor);
    pool_->record(result.tensor, stream_);
    pinned.push_back(result.memory);
  }
  if (after) after();
  done_->record(stream_);
  pool_->hold(done_, std::move(pinned));
}

void StagedCall::collective_ended(bool failed) {
  for (const Copy& result : results_) {
    if (failed && holds_numbers_with_nan(result.memory)) {
      at::Tensor(result.memory).fill_(std::numeric_limits<double>::quiet_NaN());
    }
  }
  auto* const word = reinterpret_cast<uint32_t*>(word_.mutable_data_ptr<int32_t>());
  __atomic_store_n(word, 1u, __ATOMIC_RELEASE);
}

}  // namespace ringdp::backend
