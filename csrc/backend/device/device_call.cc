#include "backend/device/device_call.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <limits>

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

at::Tensor new_word(Lane& lane) {
  at::Tensor word = lane.pinned({1}, at::kInt);
  *word.mutable_data_ptr<int32_t>() = 0;
  return word;
}

}  // namespace

DeviceCall::DeviceCall(std::shared_ptr<Lane> lane, const c10::Stream& stream)
    : CallOnDevice(std::move(lane), stream), word_(new_word(*lane_)) {}

void DeviceCall::bring(const std::vector<Copy>& inputs, std::vector<Copy> results) {
  results_ = std::move(results);
  const c10::Stream caller = lane_->callers_stream(), stream = lane_->inputs();
  const c10::DeviceGuard device(lane_->device());
  c10::Event callers(lane_->device().type());
  callers.record(caller);
  callers.block(stream);
  if (!results_.empty()) callers.block(stream_);
  if (inputs.empty() && !results_.empty()) return;
  const c10::StreamGuard guard(stream);
  std::vector<at::Tensor> pinned;
  for (const Copy& input : inputs) {
    const at::Tensor memory = flat(input.tensor);
    lane_->core().copy(input.memory.data_ptr(), memory.const_data_ptr(), memory.nbytes(), lane_->native(stream));
    lane_->record(input.tensor, stream);
    pinned.push_back(input.memory);
  }
  const auto copied = std::make_shared<c10::Event>(lane_->device().type());
  copied->record(stream);
  lane_->hold(copied, std::move(pinned));
  here_ = std::make_shared<std::atomic<bool>>(false);
  auto argument = std::make_unique<Flag>(here_);
  lane_->core().call(lane_->native(stream), &open_gate, argument.get());
  argument.release();  // open_gate() has it
}

comm::Ready DeviceCall::ready() const {
  if (!here_) return {};
  return [here = here_] { return here->load(std::memory_order_acquire); };
}

void DeviceCall::enqueue(const std::function<void()>& after, const std::string&) {
  const c10::DeviceGuard device(lane_->device());
  const c10::StreamGuard guard(stream_);
  void* const native = lane_->native(stream_);
  std::vector<at::Tensor> pinned{word_};
  const auto* const word = reinterpret_cast<const uint32_t*>(word_.const_data_ptr<int32_t>());
  if (!results_.empty()) lane_->core().await(native, word);
  for (const Copy& result : results_) {
    const at::Tensor memory = flat_target(result.tensor, "");
    lane_->core().copy(memory.data_ptr(), result.memory.const_data_ptr(), memory.nbytes(), native);
    copy_back(memory, result.tensor);
    lane_->record(result.tensor, stream_);
    pinned.push_back(result.memory);
  }
  if (after) after();
  done_->record(stream_);
  lane_->hold(done_, std::move(pinned));
}

void DeviceCall::collective_ended(bool failed) {
  for (const Copy& result : results_) {
    if (failed && holds_numbers_with_nan(result.memory)) {
      at::Tensor(result.memory).fill_(std::numeric_limits<double>::quiet_NaN());
    }
  }
  auto* const word = reinterpret_cast<uint32_t*>(word_.mutable_data_ptr<int32_t>());
  __atomic_store_n(word, 1u, __ATOMIC_RELEASE);
}

}  // namespace ringdp::backend
