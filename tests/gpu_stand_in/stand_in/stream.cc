#include "stand_in/stream.h"

#include <algorithm>
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

void Capture::add(Stream& stream, Job job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  ++heard_[&stream][&stream];
}

Capture::Heard Capture::heard(Stream& stream) {
  const std::lock_guard lock(mutex_);
  return heard_[&stream];
}

void Capture::hear(Stream& stream, const Heard& what) {
  const std::lock_guard lock(mutex_);
  Heard& known = heard_[&stream];
  for (const auto& [other, jobs] : what) known[other] = std::max(known[other], jobs);
}

bool Capture::has_heard_all(Stream& stream) {
  const std::lock_guard lock(mutex_);
  Heard& known = heard_[&stream];
  return std::all_of(heard_.begin(), heard_.end(),
                     [&](auto& other) { return known[other.first] >= other.second[other.first]; });
}

std::vector<Stream*> Capture::streams() {
  const std::lock_guard lock(mutex_);
  std::vector<Stream*> found;
  for (const auto& [stream, heard] : heard_) found.push_back(stream);
  return found;
}

std::vector<Job> Capture::jobs() {
  const std::lock_guard lock(mutex_);
  return jobs_;
}

void Stream::push(Job job) {
  if (const auto into = capture()) return into->add(*this, std::move(job));
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
  const std::shared_ptr<Capture> ended = capture();
  if (!ended) throw Refusal(cudaErrorIllegalState, "this stream is not being captured");
  --captures;
  ended->ended = true;
  for (Stream* const stream : ended->streams()) stream->leave(ended);
  leave(ended);
  if (!ended->has_heard_all(*this)) {
    throw Refusal(cudaErrorStreamCaptureUnjoined, "the capture ends before a stream that has joined it was waited for");
  }
  return ended;
}

void Stream::leave(const std::shared_ptr<Capture>& capture) {
  const std::lock_guard lock(mutex_);
  if (capture_ == capture) capture_ = nullptr;
}

void Stream::join(const std::shared_ptr<Capture>& capture) {
  const std::lock_guard lock(mutex_);
  if (capture_ == capture) return;
  if (capture->ended) throw Refusal(cudaErrorStreamCaptureIsolation, "an event of a capture that has ended");
  if (capture_) throw Refusal(cudaErrorStreamCaptureUnsupported, "this stream is in another capture");
  capture_ = capture;
}

void Event::record(Stream& stream) {
  Record record = {std::make_shared<Latch>(), stream.capture(), {}};
  if (record.capture) record.heard = record.capture->heard(stream);
  {
    const std::lock_guard lock(mutex_);
    last_ = record;
  }
  if (!record.capture) stream.push([latch = record.latch] { latch->open(); });
}

void Event::block(Stream& stream) {
  const Record record = last();
  if (record.capture) {
    stream.join(record.capture);
    return record.capture->hear(stream, record.heard);
  }
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
