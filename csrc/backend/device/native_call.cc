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
    : CallOnDevice(lane->lane(), question.captured ? lane->captures() : lane->stream()),
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
  const Deadline deadline = Deadline::after(question_.timeout + grace());
  if (question_.captured) {
    const uint64_t first = launches_.front()->stream_epoch, last = launches_.back()->stream_epoch;
    native_->keep({what + " of a graph", first, last, question_.timeout});
  } else {
    native_->watch({what, deadline, Deadline::Clock::now(), done_, std::move(launches_)});
  }
  Overseer::instance().look_after(native_);
}

// A kernel that polls knows better who is waited for, once it has given up.
std::chrono::milliseconds NativeCall::grace() const {
  return std::chrono::seconds(native_->neighbourhood().on_streams() ? 0 : 1);
}

// The window is this rank's again when its part of a plan is over, so pieces follow one another freely. Of uneven parts
// the shorter ones end in what the window held before, which belongs to no result.
void NativeCall::run(const Extent& elements, bool first) {
  gpu::Neighbourhood& neighbourhood = native_->neighbourhood();
  const DType dtype = question_.problem.dtype;
  const int64_t count = elements.count(), bytes = count * size_of(dtype), from = elements.begin * size_of(dtype);
  char* const window = neighbourhood.window();
  void* const stream = lane_->native(stream_);
  const auto at = [&](const at::Tensor& part) { return static_cast<char*>(part.data_ptr()) + from; };
  const auto held = [&](const at::Tensor& part) {
    return std::clamp<int64_t>(static_cast<int64_t>(part.nbytes()) - from, 0, bytes);
  };
  for (size_t i = 0; i < tensors_.inputs.size(); ++i) {
    const at::Tensor& input = tensors_.inputs[i];
    copy(window + pieces_.input_at(static_cast<int>(i), count, dtype), at(input), held(input));
  }
  gpu::Neighbourhood::Piece piece;
  piece.problem = gpu::problem_of(question_.problem, elements);
  piece.output_at = pieces_.output_at(0, count, dtype);
  piece.divisor = question_.divisor;
  piece.captured = question_.captured;
  piece.deadline_ns = static_cast<uint64_t>(std::max<int64_t>(std::chrono::nanoseconds(question_.timeout).count(), 1));
  launches_.push_back(neighbourhood.launch(piece, choice_, stream));
  if (first && !question_.captured) neighbourhood.await_checked(number_, stream);
  for (size_t i = 0; i < tensors_.outputs.size(); ++i) {
    char* const output = at(tensors_.outputs[i]);
    const int64_t wanted = held(tensors_.outputs[i]);
    copy(output, window + pieces_.output_at(static_cast<int>(i), count, dtype), wanted);
    if (can_be_nan_) neighbourhood.poison(output, wanted, stream);
  }
}

void NativeCall::copy(void* to, const void* from, int64_t bytes) const {
  if (bytes > 0) lane_->core().copy(to, from, static_cast<size_t>(bytes), lane_->native(stream_));
}

void NativeCall::record_tensors() const {
  for (const auto* tensors : {&tensors_.inputs, &tensors_.outputs, &tensors_.written}) {
    for (const at::Tensor& tensor : *tensors) lane_->record(tensor, stream_);
  }
  for (const auto& result : tensors_.results) lane_->record(result.tensor, stream_);
}

// Asked in this order: what is over while nothing has failed was not poisoned. What is captured is never over.
bool NativeCall::given_up() const {
  if (question_.captured) return native_->neighbourhood().given_up();
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
