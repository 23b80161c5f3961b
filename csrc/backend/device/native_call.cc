#include "backend/device/native_call.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>

#include "backend/device/overseer.h"
#include "backend/tensors.h"

namespace ringdp::backend {
namespace {

bool any_with_nan(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), holds_numbers_with_nan);
}

}  // namespace

NativeCall::NativeCall(std::shared_ptr<NativeLane> lane, const NativeQuestion& question, Tensors tensors)
    : CallOnDevice(lane->lane(), lane->stream()),
      native_(std::move(lane)),
      question_(question),
      tensors_(std::move(tensors)),
      pieces_(native_->neighbourhood().cut(question.problem)),
      choice_(native_->neighbourhood().choose(question.problem)),
      number_(native_->next_number()),
      can_be_nan_(any_with_nan(tensors_.outputs)) {}

void NativeCall::enqueue(const std::function<void()>& after, const std::string& what) {
  const c10::DeviceGuard device(lane_->device());
  c10::Event callers(lane_->device().type());
  callers.record(lane_->callers_stream());
  const c10::StreamGuard guard(stream_);
  callers.block(stream_);
  record_tensors();
  for (size_t i = 0; i < pieces_.elements.size(); ++i) run(pieces_.elements[i], i == 0);
  for (const auto& result : tensors_.results) copy_back(result.memory, result.tensor);
  if (after) after();
  done_->record(stream_);
  const Deadline deadline = Deadline::after(question_.timeout + native_->neighbourhood().grace());
  native_->watch({what, deadline, Deadline::Clock::now(), done_, std::move(launches_)});
  Overseer::instance().look_after(native_);
}

// The window is this rank's again when its part of a plan is over, so pieces follow one another freely.
void NativeCall::run(const Extent& elements, bool first) {
  gpu::DeviceRanks& neighbourhood = native_->neighbourhood();
  const DType dtype = question_.problem.dtype;
  const int64_t count = elements.count(), from = elements.begin * size_of(dtype);
  char* const window = neighbourhood.window();
  void* const stream = lane_->native(stream_);
  const auto at = [&](const at::Tensor& part) { return static_cast<char*>(part.data_ptr()) + from; };
  for (size_t i = 0; i < tensors_.inputs.size(); ++i) {
    copy(window + pieces_.input_at(static_cast<int>(i), count, dtype), at(tensors_.inputs[i]), count);
  }
  gpu::DeviceRanks::Piece piece;
  piece.problem = gpu::problem_of(question_.problem, elements);
  piece.output_at = pieces_.output_at(0, count, dtype);
  piece.divisor = question_.divisor;
  piece.deadline_ns = static_cast<uint64_t>(std::max<int64_t>(std::chrono::nanoseconds(question_.timeout).count(), 1));
  if (auto launched = neighbourhood.launch(piece, choice_, stream)) launches_.push_back(std::move(launched));
  if (first) neighbourhood.await_checked(number_, stream);
  for (size_t i = 0; i < tensors_.outputs.size(); ++i) {
    char* const output = at(tensors_.outputs[i]);
    copy(output, window + pieces_.output_at(static_cast<int>(i), count, dtype), count);
    if (can_be_nan_) neighbourhood.poison(output, count * size_of(dtype), stream);
  }
}

void NativeCall::copy(void* to, const void* from, int64_t elements) const {
  lane_->core().copy(to, from, static_cast<size_t>(elements * size_of(question_.problem.dtype)), lane_->native(stream_));
}

void NativeCall::record_tensors() const {
  for (const auto* tensors : {&tensors_.inputs, &tensors_.outputs, &tensors_.written}) {
    for (const at::Tensor& tensor : *tensors) lane_->record(tensor, stream_);
  }
  for (const auto& result : tensors_.results) lane_->record(result.tensor, stream_);
}

// Asked in this order: what is over while nothing has failed was not poisoned.
bool NativeCall::given_up() const {
  if (is_good_.load(std::memory_order_acquire)) return false;
  const bool over = done();
  if (native_->neighbourhood().given_up()) {
    native_->look();  // a kernel may have given up, which the group does not know yet
    return true;
  }
  if (over) is_good_.store(true, std::memory_order_release);
  return false;
}

void NativeCall::collective_ended(bool failed) {
  if (failed) native_->neighbourhood().give_up();
  native_->neighbourhood().checked(number_);
}

}  // namespace ringdp::backend
