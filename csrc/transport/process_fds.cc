#include "transport/process_fds.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

namespace ringdp::transport {
namespace {

bool alive(int pidfd) {
  pollfd polled{pidfd, POLLIN, 0};
  return ::poll(&polled, 1, 0) == 0;
}

struct Shielded {
  ForkMutex mutex;
  std::vector<int> fds;
};

Shielded& shielded();

// Async-signal-safe, as the child of a process with threads must be: no memory is allocated or freed.
void after_fork_in_child() {
  const int dead = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  for (const int fd : shielded().fds) {
    if (dead >= 0) ::dup3(dead, fd, O_CLOEXEC);
  }
  if (dead >= 0) ::close(dead);
  shielded().fds.clear();
}

Shielded& shielded() {
  static Shielded* const instance = [] {
    ::pthread_atfork(nullptr, nullptr, after_fork_in_child);
    return new Shielded;
  }();
  return *instance;
}

}  // namespace

SharedFds::Shared SharedFds::share(uint64_t key, const std::function<bool(int fd)>& valid,
                                   const std::function<UniqueFd()>& open) {
  const std::lock_guard lock(mutex_);
  if (const auto found = held_.find(key); found != held_.end()) {
    if (Shared held = found->second.lock(); held && valid(held->get())) return held;
  }
  UniqueFd fd = open();
  if (!fd) return nullptr;
  for (auto at = held_.begin(); at != held_.end();) at = at->second.expired() ? held_.erase(at) : std::next(at);
  auto fresh = std::make_shared<const UniqueFd>(std::move(fd));
  held_[key] = fresh;
  return fresh;
}

std::string stat_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t end = line.rfind(") ");  // the command's name may contain anything
  return end == std::string::npos ? "" : line.substr(end + 2);
}

uint64_t start_time_of(pid_t pid) {
  constexpr int kState = 3, kStartTime = 22;  // fields, as proc(5) counts them
  std::istringstream fields(stat_of(pid));
  std::string other;
  for (int field = kState; field < kStartTime; ++field) fields >> other;
  uint64_t ticks = 0;
  fields >> ticks;
  return ticks;
}

// A pid is not reused while its process lives, so a held descriptor of a living process equals a new one.
std::shared_ptr<const UniqueFd> open_pidfd(pid_t pid, uint64_t start_time) {
  static SharedFds& known = *new SharedFds;
  const auto pidfd = known.share(static_cast<uint64_t>(pid), alive,
                                 [pid] { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); });
  return start_time != 0 && start_time_of(pid) == start_time ? pidfd : nullptr;
}

bool has_ended(const UniqueFd& pidfd) { return !alive(pidfd.get()); }

bool exists(pid_t pid) { return ::kill(pid, 0) == 0 || errno != ESRCH; }

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
