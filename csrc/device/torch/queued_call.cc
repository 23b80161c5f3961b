#include "device/torch/queued_call.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <cstdint>

#include "backend/tensors.h"
#include "device/runtime/peer_memory.h"
#include "device/torch/watchdog.h"

namespace ringdp::backend {
namespace {

bool any_with_nan(const std::vector<DeviceTensors::Copy>& results) {
  return std::any_of(results.begin(), results.end(),
                     [](const DeviceTensors::Copy& result) { return holds_numbers_with_nan(result.memory); });
}

// Copies, of which those that lie behind one another on both sides are one. Parts of two storages stay apart even where
// their addresses meet: CUDA refuses a copy that reaches from one allocation into the next.
struct Copies {
  struct One {
    char* to;
    const char* from;
    int64_t bytes;
    const c10::StorageImpl* storage;  // of the tensor on one side; the window is the other
  };

  void add(char* to, const char* from, int64_t bytes, const at::Tensor& part) {
    if (bytes == 0) return;
    const c10::StorageImpl* const storage = part.storage().unsafeGetStorageImpl();
    const bool follows = !all.empty() && storage == all.back().storage && to == all.back().to + all.back().bytes &&
                         from == all.back().from + all.back().bytes;
    if (follows) {
      all.back().bytes += bytes;
    } else {
      all.push_back({to, from, bytes, storage});
    }
  }

  std::vector<One> all;
};

// A call's stream, and that of its copies, which may be the same.
struct TwoStreams {
  TwoStreams(StreamPool& its_pool, const c10::Stream& of_the_call, const c10::Stream& of_copies)
      : pool(its_pool), copies(of_copies), are_two(of_the_call != of_copies) {}

  // What the other one waits for; null where there is only one.
  std::shared_ptr<c10::Event> passed(const c10::Stream& stream) const {
    if (!are_two) return nullptr;
    auto event = pool.event();
    event->record(stream);
    return event;
  }
  static void wait(const c10::Stream& stream, const std::shared_ptr<c10::Event>& event) {
    if (event) event->block(stream);
  }

  StreamPool& pool;
  const c10::Stream copies;
  const bool are_two;
};

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
    const uint64_t first = launches_.front().epoch, last = launches_.back().epoch;
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

void QueuedCall::copy(void* to, const void* from, int64_t bytes, void* stream) const {
  if (bytes > 0) pool_->core().copy(to, from, static_cast<size_t>(bytes), stream);
}

void QueuedCall::record(const std::vector<at::Tensor>& tensors, const c10::Stream& stream) const {
  for (const at::Tensor& tensor : tensors) {
    if (!queue_->shares(tensor)) pool_->record(tensor, stream);
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
  record_tensors(stream_);
  if (request_.buffer.number == 0) {
    run_in_window();
  } else {
    for (size_t i = 0; i < pieces_.elements.size(); ++i) run_in_buffer(pieces_.elements[i], i == 0);
  }
  for (const auto& result : tensors_.results) copy_back(result.memory, result.tensor);
}

// When a rank has finished a plan, no peer uses that half of its window any more, and none uses the other half before
// this rank begins the next plan: so pieces need no barrier between them. Shorter parts are padded with what the window
// held before, which no result contains.
void QueuedCollective::run_in_window() {
  const size_t count = pieces_.elements.size();
  const bool beside = count > 1 && !fits_plan(0) && !is_captured();
  const TwoStreams streams(*pool_, stream_, beside ? device_queue().copies() : stream_);
  const c10::Stream& copies = streams.copies;
  if (beside) record_tensors(copies);
  streams.wait(copies, streams.passed(stream_));
  bring(0, copies);
  auto brought = streams.passed(copies);
  for (size_t i = 0; i < count; ++i) {
    streams.wait(stream_, brought);
    run(i);
    const auto ran = streams.passed(stream_);
    if (i + 1 < count) bring(i + 1, copies);
    brought = streams.passed(copies);
    streams.wait(copies, ran);
    fetch(i, copies);
  }
  streams.wait(stream_, streams.passed(copies));
}

char* QueuedCollective::at(const at::Tensor& part, const Extent& elements) const {
  return static_cast<char*>(part.data_ptr()) + elements.begin * size_of(request_.problem.dtype);
}

// Bytes of the piece that the part has.
int64_t QueuedCollective::held(const at::Tensor& part, const Extent& elements) const {
  const int64_t size = size_of(request_.problem.dtype);
  return std::clamp<int64_t>(static_cast<int64_t>(part.nbytes()) - elements.begin * size, 0, elements.count() * size);
}

void QueuedCollective::bring(size_t index, const c10::Stream& copies) const {
  if (fits_plan(index)) return;
  const Extent& elements = pieces_.elements[index];
  char* const window = ranks().window() + pieces_.place_of(index);
  Copies to_window;
  for (size_t i = 0; i < tensors_.read.size(); ++i) {
    const int64_t place = pieces_.input_at(static_cast<int>(i), elements.count(), request_.problem.dtype);
    const at::Tensor& input = tensors_.read[i];
    to_window.add(window + place, at(input, elements), held(input, elements), input);
  }
  for (const Copies::One& one : to_window.all) copy(one.to, one.from, one.bytes, pool_->native(copies));
}

void QueuedCollective::run(size_t index) {
  const Extent& elements = pieces_.elements[index];
  const DType dtype = request_.problem.dtype;
  gpu::DeviceRanks::Piece piece = piece_of(elements);
  const bool fits = fits_plan(index);
  if (fits) {
    piece.own_input = at(tensors_.read[0], elements);
    piece.own_output = at(tensors_.results[0].memory, elements);
  } else {
    piece.input_at = pieces_.place_of(index);
    piece.output_at = piece.input_at + pieces_.output_at(0, elements.count(), dtype);
    for (const at::Tensor& input : tensors_.read) piece.held.push_back(held(input, elements) / size_of(dtype));
  }
  launched(ranks().launch(piece, choice_, stream()));
  if (index == 0) await_release();
  if (fits && can_be_nan_) ranks().poison(piece.own_output, elements.count() * size_of(dtype), stream());
}

void QueuedCollective::fetch(size_t index, const c10::Stream& copies) const {
  if (fits_plan(index)) return;
  const Extent& elements = pieces_.elements[index];
  const char* const window = ranks().window() + pieces_.place_of(index);
  Copies to_tensors;
  for (size_t i = 0; i < tensors_.results.size(); ++i) {
    const at::Tensor& result = tensors_.results[i].memory;
    const int64_t place = pieces_.output_at(static_cast<int>(i), elements.count(), request_.problem.dtype);
    to_tensors.add(at(result, elements), window + place, held(result, elements), result);
  }
  void* const native = pool_->native(copies);
  for (const Copies::One& one : to_tensors.all) {
    can_be_nan_ ? ranks().deliver(one.to, one.from, one.bytes, native) : copy(one.to, one.from, one.bytes, native);
  }
}

// Whether a plan can run on this rank's tensors where they are.
bool QueuedCollective::fits_plan(size_t index) const {
  if (tensors_.read.size() != 1 || tensors_.results.size() != 1) return false;
  const Extent& elements = pieces_.elements[index];
  const plan::Problem piece = gpu::problem_of(request_.problem, elements);
  if (elements.count() != piece.count || !ranks().runs_on_own_tensors(piece, choice_)) return false;
  const auto fits = [&](const at::Tensor& tensor) {
    const auto begin = reinterpret_cast<uintptr_t>(at(tensor, elements));
    return begin % plan::kDevicePackBytes == 0 &&
           held(tensor, elements) == elements.count() * size_of(request_.problem.dtype);
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

void QueuedCollective::record_tensors(const c10::Stream& stream) const {
  record(tensors_.read, stream);
  record(tensors_.written, stream);
  for (const auto& result : tensors_.results) record({result.memory, result.tensor}, stream);
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
  record({gradients_, step_.parameters}, stream_);
  for (const ShardStep::Piece& piece : step_.pieces) record(piece.state, stream_);
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
         elements.count() * kSize, stream());
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
         elements.count() * kSize, stream());
  }
}

}  // namespace ringdp::backend
