// Streams of a device that is not there: each a host thread that runs jobs in order. Never ends.
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace fake {

using Job = std::function<void()>;

class Queue {
 public:
  Queue() {
    std::thread([this] { run(); }).detach();
  }

  void push(Job job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }
  bool idle() {
    const std::lock_guard lock(mutex_);
    return jobs_.empty() && !busy_;
  }
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.empty() && !busy_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !jobs_.empty(); });
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
      lock.unlock();
      job();
      job = nullptr;  // what it holds ends before the stream is idle
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool busy_ = false;
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

constexpr int kStreams = 64;  // 0: the default stream; of the others the pool gives each once

struct Stream {
  Queue queue;
  std::atomic<bool> capturing{false};
  std::mutex mutex;  // guards held
  std::deque<std::shared_ptr<Latch>> held;
};

inline Stream& stream(int64_t id) {
  static std::array<std::once_flag, kStreams> made;
  static std::array<Stream*, kStreams> streams{};
  std::call_once(made.at(id), [id] { streams[id] = new Stream; });
  return *streams[id];
}

inline thread_local int64_t current_stream = 0;

}  // namespace fake
