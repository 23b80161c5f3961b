#include "stand_in/stream.h"

#include <atomic>
#include <utility>

#include "stand_in/refusal.h"

namespace stand_in {

namespace {

std::atomic<int> captures{0};  // under way
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

}  // namespace

void exchange_capture_mode(cudaStreamCaptureMode& mode) { std::swap(mode, capture_mode); }

void refuse_beside_captures() {
  if (captures == 0 || capture_mode == cudaStreamCaptureModeRelaxed) return;
  throw Refusal(cudaErrorStreamCaptureUnsupported, "memory is taken or freed while a stream is being captured");
}

void Capture::add(Job job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
}

std::vector<Job> Capture::jobs() {
  const std::lock_guard lock(mutex_);
  return jobs_;
}

void Stream::push(Job job) {
  if (const auto into = capture()) return into->add(std::move(job));
  queue_.push(std::move(job));
}

void Stream::synchronize() {
  if (capture()) throw Refusal(cudaErrorStreamCaptureUnsupported, "waiting for a stream that is being captured");
  queue_.synchronize();
}

std::shared_ptr<Capture> Stream::capture() {
  const std::lock_guard lock(mutex_);
  return capture_;
}

void Stream::begin_capture() {
  join(std::make_shared<Capture>());
  ++captures;
}

std::shared_ptr<Capture> Stream::end_capture() {
  const std::lock_guard lock(mutex_);
  if (!capture_) throw Refusal(cudaErrorIllegalState, "this stream is not being captured");
  --captures;
  return std::exchange(capture_, nullptr);
}

void Stream::join(const std::shared_ptr<Capture>& capture) {
  const std::lock_guard lock(mutex_);
  if (capture_ == capture) return;
  if (capture_) throw Refusal(cudaErrorStreamCaptureUnsupported, "this stream is in another capture");
  capture_ = capture;
}

void Event::record(Stream& stream) {
  const Record record = {std::make_shared<Latch>(), stream.capture()};
  {
    const std::lock_guard lock(mutex_);
    last_ = record;
  }
  if (!record.capture) stream.push([latch = record.latch] { latch->open(); });
}

void Event::block(Stream& stream) {
  const Record record = last();
  if (record.capture) return stream.join(record.capture);
  if (!record.latch) return;
  if (stream.capture()) throw Refusal(cudaErrorStreamCaptureIsolation, "a captured stream waits for one that is not");
  stream.push([latch = record.latch] { latch->wait(); });
}

Event::Record Event::last() {
  const std::lock_guard lock(mutex_);
  return last_;
}

bool Event::query() {
  const Record record = last();
  if (record.capture) throw Refusal(cudaErrorStreamCaptureUnsupported, "asking for an event of a capture");
  return !record.latch || record.latch->is_open();
}

void Event::synchronize() {
  const Record record = last();
  if (record.capture) throw Refusal(cudaErrorStreamCaptureUnsupported, "waiting for an event of a capture");
  if (record.latch) record.latch->wait();
}

}  // namespace stand_in
