#include "stand_in/stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "stand_in/machine.h"
#include "stand_in/memory.h"

namespace stand_in {

namespace {

std::atomic<int> captures{0};  // under way
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

}  // namespace

void exchange_capture_mode(cudaStreamCaptureMode& mode) { std::swap(mode, capture_mode); }

void refuse_beside_captures() {
  if (captures == 0 || capture_mode == cudaStreamCaptureModeRelaxed) return;
  throw Refusal(cudaErrorStreamCaptureUnsupported, "a call that CUDA refuses while a stream is being captured");
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

namespace {

// Streams of a device take its hardware queues in turn. What waits at the head of one holds up all streams behind it.
std::shared_ptr<Queue> next_queue(int device) {
  const int connections = machine().connections;
  if (connections == 0) return std::make_shared<Queue>();
  static std::mutex mutex;
  static auto& queues = *new std::map<int, std::vector<std::shared_ptr<Queue>>>;
  static auto& dealt = *new std::map<int, int>;
  const std::lock_guard lock(mutex);
  auto& its = queues[device];
  const auto next = static_cast<size_t>(dealt[device]++ % connections);
  if (next == its.size()) its.push_back(std::make_shared<Queue>());
  return its[next];
}

}  // namespace

Stream::Stream(int device) : device(device), queue_(next_queue(device)) {}

void Stream::push(Job job) {
  if (const auto into = capture()) return into->add(*this, std::move(job));
  queue_->push(std::move(job));
}

void Stream::synchronize() {
  if (capture()) throw Refusal(cudaErrorStreamCaptureUnsupported, "waiting for a stream that is being captured");
  queue_->synchronize();
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
  refuse_beside_captures();
  const Record record = last();
  if (record.capture) throw Refusal(cudaErrorStreamCaptureUnsupported, "asking for an event of a capture");
  return !record.latch || record.latch->is_open();
}

void Event::synchronize() {
  const Record record = last();
  if (record.capture) throw Refusal(cudaErrorStreamCaptureUnsupported, "waiting for an event of a capture");
  if (record.latch) record.latch->wait();
}

// Which streams there are, and what runs on them.

namespace {

struct Streams {
  std::mutex mutex;  // guards the next two
  std::map<Stream*, std::shared_ptr<Stream>> created;
  std::map<int, std::shared_ptr<Stream>> null;  // by device
};

// Never destroyed: streams may run until the process ends.
Streams& streams() {
  static auto* const instance = new Streams;
  return *instance;
}

Queue& host_functions() {
  static auto* const instance = new Queue;
  return *instance;
}

thread_local bool in_host_function = false;
std::atomic<size_t> copied{0};
std::atomic<bool> has_copies_without_end{false};

template <class Word>
void push_wait(Stream& stream, const Word* word, Word value) {
  stream.push([word, value] {
    while (static_cast<std::make_signed_t<Word>>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
}

template <class Word>
void push_write(Stream& stream, Word* word, Word value) {
  stream.push([word, value] { __atomic_store_n(word, value, __ATOMIC_RELEASE); });
}

}  // namespace

Stream* create_stream(int device) {
  const auto stream = std::make_shared<Stream>(device);
  const std::lock_guard lock(streams().mutex);
  streams().created[stream.get()] = stream;
  return stream.get();
}

size_t created_streams() {
  const std::lock_guard lock(streams().mutex);
  return streams().created.size();
}

void destroy_stream(Stream* stream) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  const auto found = all.created.find(stream);
  if (found == all.created.end()) throw Refusal(cudaErrorInvalidResourceHandle, "no stream, or destroyed already");
  all.created.erase(found);
}

Stream& null_stream(int device) {
  const std::lock_guard lock(streams().mutex);
  auto& stream = streams().null[device];
  if (!stream) stream = std::make_shared<Stream>(device);
  return *stream;
}

Stream& known(Stream* stream) {
  if (stream == nullptr) return null_stream(current_device());
  const std::lock_guard lock(streams().mutex);
  if (streams().created.count(stream)) return *stream;
  throw Refusal(cudaErrorInvalidResourceHandle, "no stream, or destroyed already");
}

namespace {

std::vector<std::shared_ptr<Stream>> streams_of(int device) {
  std::vector<std::shared_ptr<Stream>> its;
  const std::lock_guard lock(streams().mutex);
  for (const auto& [handle, stream] : streams().created) {
    if (stream->device == device) its.push_back(stream);
  }
  for (const auto& [number, stream] : streams().null) {
    if (stream->device == device) its.push_back(stream);
  }
  return its;
}

}  // namespace

void synchronize_device(int device) {
  for (const auto& stream : streams_of(device)) stream->synchronize();
}

void drain_device(int device) {
  for (const auto& stream : streams_of(device)) stream->drain();
}

void call_on_host(Stream& stream, void (*function)(void*), void* argument) {
  stream.push([function, argument] {
    const auto over = std::make_shared<Latch>();
    host_functions().push([=] {
      in_host_function = true;
      function(argument);
      over->open();
    });
    over->wait();
  });
}

bool is_in_host_function() { return in_host_function; }

void copy(Stream& stream, void* to, const void* from, size_t bytes) {
  check_within_one(to, bytes);
  check_within_one(from, bytes);
  copied += bytes;
  if (!stream.has_launched) count("a copy on a stream without kernels");
  if (!machine().peer_copies && (is_peers(to) || is_peers(from))) {
    has_copies_without_end = true;
    return stream.push([] { Latch().wait(); });
  }
  if (!machine().peer_writes && is_peers(to)) return;
  stream.push([=] { std::memmove(to, from, bytes); });
}

size_t copied_bytes() { return copied; }

void wait_for_copies_without_end() {
  if (has_copies_without_end) Latch().wait();
}

void wait_value(Stream& stream, const uint32_t* word, uint32_t value) { push_wait(stream, word, value); }
void wait_value(Stream& stream, const uint64_t* word, uint64_t value) { push_wait(stream, word, value); }

void write_value(Stream& stream, uint32_t* word, uint32_t value) { push_write(stream, word, value); }
void write_value(Stream& stream, uint64_t* word, uint64_t value) { push_write(stream, word, value); }

}  // namespace stand_in
