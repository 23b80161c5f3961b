#include "base/fork_mutex.h"

#include <pthread.h>

#include <algorithm>
#include <vector>

namespace ringdp {
namespace {

struct Known {
  std::mutex mutex;  // guards the list; held while the process forks
  std::vector<ForkMutex*> all;
};

Known& known();

void before_fork() {
  known().mutex.lock();
  for (ForkMutex* const one : known().all) one->lock();
}

void after_fork() {
  for (ForkMutex* const one : known().all) one->unlock();
  known().mutex.unlock();
}

Known& known() {
  static Known* const instance = [] {
    ::pthread_atfork(before_fork, after_fork, after_fork);
    return new Known;
  }();
  return *instance;
}

}  // namespace

ForkMutex::ForkMutex() {
  const std::lock_guard lock(known().mutex);
  known().all.push_back(this);
}

ForkMutex::~ForkMutex() {
  const std::lock_guard lock(known().mutex);
  auto& all = known().all;
  all.erase(std::find(all.begin(), all.end(), this));
}

}  // namespace ringdp
