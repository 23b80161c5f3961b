#include "base/threads.h"

#include <sched.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace ringdp {

std::vector<int> usable_cores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

int current_core() { return ::sched_getcpu(); }

bool move_to(const std::vector<int>& cores) {
  cpu_set_t before, only;
  if (::sched_getaffinity(0, sizeof before, &before) != 0) return false;
  CPU_ZERO(&only);
  for (const int core : cores) {
    if (core >= 0 && core < CPU_SETSIZE) CPU_SET(core, &only);
  }
  CPU_AND(&only, &only, &before);
  if (CPU_COUNT(&only) == 0 || ::sched_setaffinity(0, sizeof only, &only) != 0) return false;
  return ::sched_setaffinity(0, sizeof before, &before) == 0;
}

// Shared with the thread, which may be detached.
struct HelperThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> call;  // to be made
  bool is_under_way = false;   // from begin() until the call has returned
  std::exception_ptr error;    // of the last call
  bool stop = false;
  std::thread thread;

  static void loop(const std::shared_ptr<State>& state) {
    std::unique_lock lock(state->mutex);
    for (;;) {
      state->changed.wait(lock, [&] { return state->stop || state->call; });
      if (!state->call) return;
      auto call = std::exchange(state->call, nullptr);
      lock.unlock();
      std::exception_ptr error;
      try {
        call();
      } catch (...) {
        error = std::current_exception();
      }
      call = nullptr;  // what it owns is destroyed without the lock
      lock.lock();
      state->error = std::move(error);
      state->is_under_way = false;
      state->changed.notify_all();
    }
  }
};

HelperThread::HelperThread() : state_(std::make_shared<State>()) {
  state_->thread = std::thread([state = state_] { State::loop(state); });
}

HelperThread::~HelperThread() {
  bool is_back = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
    is_back = !state_->is_under_way;
  }
  state_->changed.notify_all();
  if (is_back) {
    state_->thread.join();
  } else {
    state_->thread.detach();
  }
}

bool HelperThread::begin(std::function<void()> call) {
  const std::lock_guard lock(state_->mutex);
  if (state_->is_under_way) return false;
  state_->call = std::move(call);
  state_->is_under_way = true;
  state_->error = nullptr;
  state_->changed.notify_all();
  return true;
}

bool HelperThread::wait(Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  while (state_->is_under_way && !deadline.passed()) {
    state_->changed.wait_until(lock, deadline.next_look());
  }
  if (state_->is_under_way) return false;
  if (const auto error = std::exchange(state_->error, nullptr)) std::rethrow_exception(error);
  return true;
}

}  // namespace ringdp
