#include "backend/device/native_call.h"

#include <algorithm>

#include "backend/tensors.h"
#include "gpu/neighbourhood.h"

namespace ringdp::backend {
namespace {

bool any_with_nan(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), holds_numbers_with_nan);
}

}  // namespace

NativeCall::NativeCall(std::shared_ptr<NativeLane> lane, const NativeQuestion& question, Tensors tensors)
    : NativeJob(std::move(lane), question.timeout, question.captured),
      question_(question),
      tensors_(std::move(tensors)),
      pieces_(cut()),
      choice_(ranks().choose(question.problem)),
      can_be_nan_(any_with_nan(tensors_.outputs)) {}

gpu::Pieces NativeCall::cut() const {
  if (question_.segment.number == 0) return ranks().cut(question_.problem);
  return ranks().sharing()->cut_in_segment(question_.problem).value();
}

void NativeCall::queue() {
  record_tensors();
  for (size_t i = 0; i < pieces_.elements.size(); ++i) {
    question_.segment.number == 0 ? run(pieces_.elements[i], i == 0) : run_in_segment(pieces_.elements[i], i == 0);
  }
  for (const auto& result : tensors_.results) copy_back(result.memory, result.tensor);
}

// The window is this rank's again when its part of a plan is over, so pieces follow one another freely. Of uneven parts
// the shorter ones end in what the window held before, which belongs to no result.
void NativeCall::run(const Extent& elements, bool first) {
  const DType dtype = question_.problem.dtype;
  const int64_t count = elements.count(), bytes = count * size_of(dtype), from = elements.begin * size_of(dtype);
  char* const window = ranks().window();
  const auto at = [&](const at::Tensor& part) { return static_cast<char*>(part.data_ptr()) + from; };
  const auto held = [&](const at::Tensor& part) {
    return std::clamp<int64_t>(static_cast<int64_t>(part.nbytes()) - from, 0, bytes);
  };
  gpu::DeviceRanks::Piece piece = piece_of(elements);
  for (size_t i = 0; i < tensors_.inputs.size(); ++i) {
    const at::Tensor& input = tensors_.inputs[i];
    copy(window + pieces_.input_at(static_cast<int>(i), count, dtype), at(input), held(input));
    piece.held.push_back(held(input) / size_of(dtype));
  }
  piece.output_at = pieces_.output_at(0, count, dtype);
  launched(ranks().launch(piece, choice_, stream()));
  if (first) await_checked();
  for (size_t i = 0; i < tensors_.outputs.size(); ++i) {
    char* const output = at(tensors_.outputs[i]);
    const int64_t wanted = held(tensors_.outputs[i]);
    copy(output, window + pieces_.output_at(static_cast<int>(i), count, dtype), wanted);
    if (can_be_nan_) ranks().poison(output, wanted, stream());
  }
}

// Of an all_gather, this rank's input is its part of the output.
void NativeCall::run_in_segment(const Extent& elements, bool first) {
  const DType dtype = question_.problem.dtype;
  const int64_t count = elements.count(), from = elements.begin * size_of(dtype);
  gpu::DeviceRanks::Piece piece = piece_of(elements);
  piece.segment = question_.segment;
  piece.input_at = piece.output_at = from;
  if (pieces_.outputs > 1) piece.input_step = pieces_.output_at(1, count, dtype);
  if (first && question_.captured) needs(ranks().sharing()->segments()->memory(piece.segment.number));
  if (first) await_checked();
  launched(ranks().launch(piece, choice_, stream()));
  for (const at::Tensor& output : tensors_.outputs) {
    void* const memory = static_cast<char*>(output.data_ptr()) + from;
    if (can_be_nan_) ranks().poison(memory, count * size_of(dtype), stream());
  }
}

gpu::DeviceRanks::Piece NativeCall::piece_of(const Extent& elements) const {
  gpu::DeviceRanks::Piece piece;
  piece.problem = gpu::problem_of(question_.problem, elements);
  piece.divisor = question_.divisor;
  piece.captured = question_.captured;
  piece.deadline_ns = deadline_ns();
  return piece;
}

void NativeCall::record_tensors() const {
  for (const auto* tensors : {&tensors_.inputs, &tensors_.outputs, &tensors_.written}) record(*tensors);
  for (const auto& result : tensors_.results) record({result.tensor});
}

}  // namespace ringdp::backend
