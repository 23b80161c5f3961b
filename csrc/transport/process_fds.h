// File descriptors that all groups share, that refer to other processes, or that forked children must not keep.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fork_mutex.h"
#include "base/unique_fd.h"

namespace ringdp::transport {

// Descriptors that all groups of a process share, each under a key; closed with the last holder. Any thread.
class SharedFds {
 public:
  using Shared = std::shared_ptr<const UniqueFd>;

  // The descriptor that is held under `key`, if it is still `valid`; else the one that `open` makes. Both run under a
  // lock. Null when open() gives none.
  Shared share(uint64_t key, const std::function<bool(int fd)>& valid, const std::function<UniqueFd()>& open);

 private:
  ForkMutex mutex_;
  std::map<uint64_t, std::weak_ptr<const UniqueFd>> held_;
};

// What follows the command's name in /proc/PID/stat: "S 1 ..."; empty when /proc shows no such process.
std::string stat_of(pid_t pid);

// When a process has started, in clock ticks since the kernel's boot: two processes of one pid differ in it. 0 when
// /proc shows no such process.
uint64_t start_time_of(pid_t pid);

// A descriptor of another process, readable once that process has ended; shared by all groups of this process. Null
// when /proc shows no process of that pid and start time, or the kernel has no pidfd_open.
std::shared_ptr<const UniqueFd> open_pidfd(pid_t pid, uint64_t start_time);

bool has_ended(const UniqueFd& pidfd);

// Whether there is a process with that pid, including other users' processes and those that are not reaped yet.
bool exists(pid_t pid);

// Keeps descriptors from forked children, such as a DataLoader's workers. Peers on other hosts notice a dead rank by
// its closed sockets, which a child's copies would hide for as long as it lives, and shared memory would live as long.
//
// While it exists, fork() replaces these descriptors in the child by a dead one: their numbers stay taken until the
// child's copies of their owners close them. Any thread.
class ForkShield {
 public:
  ForkShield() = default;
  explicit ForkShield(std::vector<int> fds);
  ForkShield(ForkShield&& other) noexcept : fds_(std::exchange(other.fds_, {})) {}
  ForkShield& operator=(ForkShield&& other) noexcept {
    std::swap(fds_, other.fds_);
    return *this;
  }
  ~ForkShield();

 private:
  std::vector<int> fds_;
};

}  // namespace ringdp::transport
