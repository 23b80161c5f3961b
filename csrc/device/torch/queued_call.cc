#include "device/torch/queued_call.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>

#include "backend/tensors.h"
#include "device/runtime/peer_memory.h"
#include "device/torch/watchdog.h"

namespace ringdp::backend {
namespace {

bool any_with_nan(const std::vector<DeviceTensors::Copy>& results) {
  return std::any_of(results.begin(), results.end(),
                     [](const DeviceTensors::Copy& result) { return holds_numbers_with_nan(result.memory); });
}

constexpr int64_t kSize = sizeof(float);

float* floats(const at::Tensor& tensor, int64_t element) { return static_cast<float*>(tensor.data_ptr()) + element; }

}  // namespace

QueuedCall::QueuedCall(std::shared_ptr<DeviceQueue> queue, std::chrono::milliseconds timeout, bool captured)
    : RunningCall(queue->pool(), captured ? queue->captures() : queue->stream(), captured),
      queue_(std::move(queue)),
      timeout_(timeout),
      captured_(captured),
      number_(queue_->next_number()) {}

void QueuedCall::enqueue(const std::function<void()>& after, const std::string& what) {
  const c10::DeviceGuard device(pool_->device());
  const auto callers = pool_->event(captured_);
  callers->record(pool_->callers_stream());
  const c10::StreamGuard guard(stream_);
  callers->block(stream_);
  const DeviceQueue::Queueing queueing(*queue_);  // keeps the watchdog on the queue until watch() below
  Watchdog::instance().watch(queue_);
  if (!captured_) ranks().mark_turn(number_, stream());
  queue();
  if (after) after();
  done_->record(stream_);
  if (captured_) {
    const uint64_t first = launches_.front()->stream_epoch, last = launches_.back()->stream_epoch;
    queue_->keep({what + " of a graph", first, last, timeout_, memory_});
  } else {
    queue_->watch({what, number_, timeout_ + ranks().grace(), done_, std::move(launches_)});
  }
}

uint64_t QueuedCall::deadline_ns() const {
  return static_cast<uint64_t>(std::max<int64_t>(std::chrono::nanoseconds(timeout_).count(), 1));
}

void QueuedCall::await_release() const {
  if (!captured_) ranks().await_release(number_, stream());
}

void QueuedCall::copy(void* to, const void* from, int64_t bytes) const {
  if (bytes > 0) pool_->core().copy(to, from, static_cast<size_t>(bytes), stream());
}

void QueuedCall::record(const std::vector<at::Tensor>& tensors) const {
  for (const at::Tensor& tensor : tensors) {
    if (!queue_->shares(tensor)) pool_->record(tensor, stream_);
  }
}

// done() is read first: a call that is done while nothing has failed was not poisoned. A captured call is never done.
bool QueuedCall::aborted() const {
  if (captured_) return ranks().aborted();
  if (is_good_.load(std::memory_order_acquire)) return false;
  const bool over = done();
  if (ranks().aborted()) {
    queue_->poll();  // a kernel may have aborted, which the group does not know yet
    return true;
  }
  if (over) is_good_.store(true, std::memory_order_release);
  return false;
}

void QueuedCall::collective_ended(bool failed) {
  if (failed) ranks().abort();
  ranks().release(number_);
}

QueuedCollective::QueuedCollective(std::shared_ptr<DeviceQueue> queue, const CollectiveRequest& request,
                                   DeviceTensors tensors)
    : QueuedCall(std::move(queue), request.timeout, request.captured),
      request_(request),
      tensors_(std::move(tensors)),
      pieces_(cut()),
      choice_(ranks().choose(request.problem)),
      can_be_nan_(any_with_nan(tensors_.results)) {}

gpu::Pieces QueuedCollective::cut() const {
  if (request_.buffer.number == 0) return ranks().cut(request_.problem);
  return ranks().sharing()->cut_in_buffer(request_.problem).value();
}

void QueuedCollective::queue() {
  record_tensors();
  for (size_t i = 0; i < pieces_.elements.size(); ++i) {
    request_.buffer.number == 0 ? run(pieces_.elements[i], i == 0) : run_in_buffer(pieces_.elements[i], i == 0);
  }
  for (const auto& result : tensors_.results) copy_back(result.memory, result.tensor);
}

// When a rank has finished a plan, no peer uses its window any more, so pieces need no barrier between them. Shorter
// parts are padded with what the window held before, which no result contains.
void QueuedCollective::run(const Extent& elements, bool first) {
  const DType dtype = request_.problem.dtype;
  const int64_t count = elements.count(), bytes = count * size_of(dtype), from = elements.begin * size_of(dtype);
  char* const window = ranks().window();
  const auto at = [&](const at::Tensor& part) { return static_cast<char*>(part.data_ptr()) + from; };
  const auto held = [&](const at::Tensor& part) {
    return std::clamp<int64_t>(static_cast<int64_t>(part.nbytes()) - from, 0, bytes);
  };
  gpu::DeviceRanks::Piece piece = piece_of(elements);
  if (fits_plan(piece.problem, elements)) {
    piece.own_input = at(tensors_.read[0]);
    piece.own_output = at(tensors_.results[0].memory);
    launched(ranks().launch(piece, choice_, stream()));
    if (first) await_release();
    if (can_be_nan_) ranks().poison(piece.own_output, bytes, stream());
    return;
  }
  for (size_t i = 0; i < tensors_.read.size(); ++i) {
    const at::Tensor& input = tensors_.read[i];
    copy(window + pieces_.input_at(static_cast<int>(i), count, dtype), at(input), held(input));
    piece.held.push_back(held(input) / size_of(dtype));
  }
  piece.output_at = pieces_.output_at(0, count, dtype);
  launched(ranks().launch(piece, choice_, stream()));
  if (first) await_release();
  for (size_t i = 0; i < tensors_.results.size(); ++i) {
    char* const output = at(tensors_.results[i].memory);
    const int64_t wanted = held(tensors_.results[i].memory);
    const char* const from = window + pieces_.output_at(static_cast<int>(i), count, dtype);
    can_be_nan_ ? ranks().deliver(output, from, wanted, stream()) : copy(output, from, wanted);
  }
}

// Whether a plan can run on this rank's tensors where they are.
bool QueuedCollective::fits_plan(const plan::Problem& piece, const Extent& elements) const {
  if (tensors_.read.size() != 1 || tensors_.results.size() != 1) return false;
  if (elements.count() != piece.count || !ranks().runs_on_own_tensors(piece, choice_)) return false;
  const auto fits = [&](const at::Tensor& tensor) {
    const int64_t size = size_of(request_.problem.dtype);
    const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr()) + static_cast<uintptr_t>(elements.begin * size);
    return begin % plan::kDevicePackBytes == 0 && elements.end * size <= static_cast<int64_t>(tensor.nbytes());
  };
  return fits(tensors_.read[0]) && fits(tensors_.results[0].memory);
}

// The input of an all_gather is this rank's part of the output.
void QueuedCollective::run_in_buffer(const Extent& elements, bool first) {
  const DType dtype = request_.problem.dtype;
  const int64_t count = elements.count(), from = elements.begin * size_of(dtype);
  gpu::DeviceRanks::Piece piece = piece_of(elements);
  piece.buffer = request_.buffer;
  piece.input_at = piece.output_at = from;
  if (pieces_.outputs > 1) piece.input_stride = pieces_.output_at(1, count, dtype);
  if (first && request_.captured) needs(ranks().sharing()->buffers()->memory(piece.buffer.number));
  if (first) await_release();
  launched(ranks().launch(piece, choice_, stream()));
  for (const auto& result : tensors_.results) {
    void* const memory = static_cast<char*>(result.memory.data_ptr()) + from;
    if (can_be_nan_) ranks().poison(memory, count * size_of(dtype), stream());
  }
}

gpu::DeviceRanks::Piece QueuedCollective::piece_of(const Extent& elements) const {
  gpu::DeviceRanks::Piece piece;
  piece.problem = gpu::problem_of(request_.problem, elements);
  piece.divisor = request_.divisor;
  piece.captured = request_.captured;
  piece.deadline_ns = deadline_ns();
  return piece;
}

void QueuedCollective::record_tensors() const {
  record(tensors_.read);
  record(tensors_.written);
  for (const auto& result : tensors_.results) record({result.memory, result.tensor});
}

QueuedStep::QueuedStep(std::shared_ptr<DeviceQueue> queue, at::Tensor gradients, double divisor, ShardStep step,
                       int rank, int world, std::chrono::milliseconds timeout)
    : QueuedCall(std::move(queue), timeout),
      gradients_(std::move(gradients)),
      divisor_(divisor),
      step_(std::move(step)),
      rank_(rank),
      world_(world),
      part_(gradients_.numel() / world),
      pieces_(peer_memory().cut_step(part_)) {}

void QueuedStep::queue() {
  record({gradients_, step_.parameters});
  for (const ShardStep::Piece& piece : step_.pieces) record(piece.state);
  for (size_t i = 0; i < pieces_.elements.size(); ++i) run(pieces_.elements[i], i == 0);
  peer_memory().poison(step_.parameters.data_ptr(), step_.parameters.numel() * kSize, stream());
}

// `elements`: the range in every rank's part.
void QueuedStep::run(const Extent& elements, bool first) {
  bring(elements);
  launched(peer_memory().launch_barrier(deadline_ns(), stream()));
  if (first) await_release();
  for (const ShardStep::Piece& piece : step_.pieces) step(piece, elements);
  launched(peer_memory().launch_barrier(deadline_ns(), stream()));
  if (gives()) fetch(elements);
}

int64_t QueuedStep::window_at(int rank, const Extent& elements) const {
  return pieces_.input_at(rank, elements.count(), DType::kF32);
}

// Copies this rank's gradients to its window, for all ranks to read.
void QueuedStep::bring(const Extent& elements) const {
  for (int r = 0; r < world_; ++r) {
    copy(peer_memory().window() + window_at(r, elements), floats(gradients_, r * part_ + elements.begin),
         elements.count() * kSize);
  }
}

void QueuedStep::step(const ShardStep::Piece& piece, const Extent& elements) const {
  const int64_t begin = std::max(elements.begin, piece.offset);
  const int64_t end = std::min(elements.end, piece.offset + piece.state[0].numel());
  if (begin >= end) return;
  gpu::StepFacts facts;
  facts.at = window_at(rank_, elements) + (begin - elements.begin) * kSize;
  facts.gives = gives();
  facts.count = end - begin;
  facts.divisor = divisor_;
  facts.parameters = floats(step_.parameters, (gives() ? rank_ * part_ : 0) + begin);
  for (size_t k = 0; k < piece.state.size(); ++k) facts.state[k] = floats(piece.state[k], begin - piece.offset);
  facts.scalars = piece.scalars;
  peer_memory().step(facts, stream());
}

// Copies the parts that other ranks have stepped from the window to the parameters.
void QueuedStep::fetch(const Extent& elements) const {
  for (int r = 0; r < world_; ++r) {
    if (r == rank_) continue;
    copy(floats(step_.parameters, r * part_ + elements.begin), peer_memory().window() + window_at(r, elements),
         elements.count() * kSize);
  }
}

}  // namespace ringdp::backend
