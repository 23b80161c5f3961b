// A host thread that runs jobs in order, and a latch for those who wait for one.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

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

}  // namespace stand_in
