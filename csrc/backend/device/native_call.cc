#include "backend/device/native_call.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "backend/tensors.h"

namespace ringdp::backend {
namespace {

bool any_with_nan(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), holds_numbers_with_nan);
}

}  // namespace

NativeCall::NativeCall(std::shared_ptr<NativeLane> lane, const NativeQuestion& question, Tensors tensors)
    : NativeJob(std::move(lane), question.timeout),
      question_(question),
      tensors_(std::move(tensors)),
      pieces_(neighbourhood().cut(question.problem)),
      choice_(neighbourhood().choose(question.problem)),
      can_be_nan_(any_with_nan(tensors_.outputs)) {}

void NativeCall::queue() {
  record_tensors();
  for (size_t i = 0; i < pieces_.elements.size(); ++i) run(pieces_.elements[i], i == 0);
  for (const auto& result : tensors_.results) copy_back(result.memory, result.tensor);
}

// The window is this rank's again when its part of a plan is over, so pieces follow one another freely.
void NativeCall::run(const Extent& elements, bool first) {
  const DType dtype = question_.problem.dtype;
  const int64_t count = elements.count(), bytes = count * size_of(dtype), from = elements.begin * size_of(dtype);
  char* const window = neighbourhood().window();
  const auto at = [&](const at::Tensor& part) { return static_cast<char*>(part.data_ptr()) + from; };
  for (size_t i = 0; i < tensors_.inputs.size(); ++i) {
    copy(window + pieces_.input_at(static_cast<int>(i), count, dtype), at(tensors_.inputs[i]), bytes);
  }
  gpu::Neighbourhood::Piece piece;
  piece.problem = gpu::problem_of(question_.problem, elements);
  piece.output_at = pieces_.output_at(0, count, dtype);
  piece.divisor = question_.divisor;
  piece.deadline_ns = deadline_ns();
  launched(neighbourhood().launch(piece, choice_, stream()));
  if (first) await_checked();
  for (size_t i = 0; i < tensors_.outputs.size(); ++i) {
    char* const output = at(tensors_.outputs[i]);
    copy(output, window + pieces_.output_at(static_cast<int>(i), count, dtype), bytes);
    if (can_be_nan_) neighbourhood().poison(output, bytes, stream());
  }
}

void NativeCall::record_tensors() const {
  for (const auto* tensors : {&tensors_.inputs, &tensors_.outputs, &tensors_.written}) record(*tensors);
  for (const auto& result : tensors_.results) record({result.tensor});
}

}  // namespace ringdp::backend
