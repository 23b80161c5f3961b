// A host thread that runs jobs in order, and a latch for those who wait for one.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda_runtime.h"

namespace stand_in {

using Job = std::function<void()>;

class Queue {
 public:
  Queue() {
    std::thread([state = state_] { state->run(); }).detach();
  }
  // What is queued still runs.
  ~Queue() {
    const std::lock_guard lock(state_->mutex);
    state_->ending = true;
    state_->changed.notify_all();
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  void push(Job job) {
    const std::lock_guard lock(state_->mutex);
    state_->jobs.push_back(std::move(job));
    state_->changed.notify_all();
  }
  bool idle() {
    const std::lock_guard lock(state_->mutex);
    return state_->idle();
  }
  void synchronize() {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [this] { return state_->idle(); });
  }

 private:
  struct State {
    std::mutex mutex;  // guards what follows
    std::condition_variable changed;
    std::deque<Job> jobs;
    bool busy = false, ending = false;

    bool idle() const { return jobs.empty() && !busy; }
    void run() {
      std::unique_lock lock(mutex);
      for (;;) {
        changed.wait(lock, [this] { return !jobs.empty() || ending; });
        if (jobs.empty()) return;
        Job job = std::move(jobs.front());
        jobs.pop_front();
        busy = true;
        lock.unlock();
        job();
        job = nullptr;  // what it holds ends before the queue is idle
        lock.lock();
        busy = false;
        changed.notify_all();
      }
    }
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

class Latch {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }
  bool is_open() {
    const std::lock_guard lock(mutex_);
    return open_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

// Streams, events and captures. A stream is a host thread that runs jobs in order.
//
// The null stream is an ordinary stream of its device: nothing waits for it. All functions are thread-safe and throw
// Refusal. Operations do not wait for the device, except where their names say so.

class Stream;

// What a stream was given while it was captured, and what others were that joined: replayed in the order of the calls.
class Capture {
 public:
  using Heard = std::map<Stream*, size_t>;  // how many jobs of which stream come before

  void add(Stream& stream, Job job);
  std::vector<Job> jobs();

  Heard heard(Stream& stream);
  void hear(Stream& stream, const Heard& what);  // which takes part from now on
  bool has_heard_all(Stream& stream);
  std::vector<Stream*> streams();
  std::atomic<bool> ended{false};

 private:
  std::mutex mutex_;  // guards the rest
  std::vector<Job> jobs_;
  std::map<Stream*, Heard> heard_;  // of all that take part, their own jobs included
};

// Captures are begun in the global mode: until one has ended, threads that are not in the relaxed mode may neither take
// nor free memory, nor query events.
void exchange_capture_mode(cudaStreamCaptureMode& mode);
void refuse_beside_captures();

class Stream {
 public:
  explicit Stream(int device);
  const int device;
  std::atomic<bool> has_launched{false};  // a kernel, ever

  void push(Job job);  // to be run, or captured
  bool idle() { return queue_->idle(); }
  void synchronize();
  void drain() { queue_->synchronize(); }

  std::shared_ptr<Capture> capture();  // null: none
  void begin_capture();
  std::shared_ptr<Capture> end_capture();  // for all that take part; unless all have been waited for there is no graph
  void join(const std::shared_ptr<Capture>& capture);
  void leave(const std::shared_ptr<Capture>& capture);

 private:
  std::mutex mutex_;  // guards capture_
  std::shared_ptr<Capture> capture_;
  const std::shared_ptr<Queue> queue_;  // a hardware queue, maybe of several streams
};

class Event {
 public:
  void record(Stream& stream);
  void block(Stream& stream);  // what comes later on the stream waits for the last record
  bool query();
  void synchronize();

 private:
  struct Record {
    std::shared_ptr<Latch> latch;
    std::shared_ptr<Capture> capture;  // instead, where the stream was captured
    Capture::Heard heard;
  };
  Record last();

  std::mutex mutex_;  // guards last_
  Record last_;
};

Stream* create_stream(int device);
void destroy_stream(Stream* stream);  // what is queued still runs
size_t created_streams();             // not destroyed so far
// Itself, or for null the current device's own. Throws for what is no stream.
Stream& known(Stream* stream);
Stream& null_stream(int device);
void synchronize_device(int device);
void drain_device(int device);  // the same, but for what is captured: as freeing does

// As CUDA may: one thread runs the functions of all streams, so one that waited would hold up all.
void call_on_host(Stream& stream, void (*function)(void*), void* argument);
bool is_in_host_function();

void copy(Stream& stream, void* to, const void* from, size_t bytes);
size_t copied_bytes();  // by copy(), queued so far
// Before memory is unmapped: without end where a copy does not end.
void wait_for_copies_without_end();
// The word at a device address (memory.h): compared cyclically.
void wait_value(Stream& stream, const uint32_t* word, uint32_t value);
void wait_value(Stream& stream, const uint64_t* word, uint64_t value);
void write_value(Stream& stream, uint32_t* word, uint32_t value);
void write_value(Stream& stream, uint64_t* word, uint64_t value);

}  // namespace stand_in
