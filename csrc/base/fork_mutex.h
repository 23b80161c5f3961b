// A mutex for what all threads of a process share, in a process that may fork.
#pragma once
#include <mutex>

namespace ringdp {

// fork() waits until no other thread holds it, so that a child finds it free and what it guards whole: the thread that
// holds a common mutex does not exist in the child. For short work, in which no second one is taken and nothing forks.
class ForkMutex {
 public:
  ForkMutex();
  ~ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

}  // namespace ringdp
