#include "transport/fork_shield.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

namespace ringdp::transport {
namespace {

struct Shielded {
  std::mutex mutex;
  std::vector<int> fds;
};

Shielded& shielded();

void before_fork() { shielded().mutex.lock(); }

void after_fork_in_parent() { shielded().mutex.unlock(); }

// Only what is safe in the child of a process with threads: no memory is asked for, or given back.
void after_fork_in_child() {
  const int dead = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  for (const int fd : shielded().fds) {
    if (dead >= 0) ::dup3(dead, fd, O_CLOEXEC);
  }
  if (dead >= 0) ::close(dead);
  shielded().fds.clear();
  shielded().mutex.unlock();
}

Shielded& shielded() {
  static Shielded* const instance = [] {
    ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return new Shielded;
  }();
  return *instance;
}

}  // namespace

ForkShield::ForkShield(std::vector<int> fds) : fds_(std::move(fds)) {
  const std::lock_guard lock(shielded().mutex);
  shielded().fds.insert(shielded().fds.end(), fds_.begin(), fds_.end());
}

ForkShield::~ForkShield() {
  if (fds_.empty()) return;
  const std::lock_guard lock(shielded().mutex);
  auto& all = shielded().fds;
  const auto is_own = [this](int fd) { return std::find(fds_.begin(), fds_.end(), fd) != fds_.end(); };
  all.erase(std::remove_if(all.begin(), all.end(), is_own), all.end());
}

}  // namespace ringdp::transport
