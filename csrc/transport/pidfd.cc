#include "transport/pidfd.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "transport/shared_fds.h"

namespace ringdp::transport {
namespace {

bool alive(int pidfd) {
  pollfd polled{pidfd, POLLIN, 0};
  return ::poll(&polled, 1, 0) == 0;
}

}  // namespace

// A pid is not given away while its process lives: a held descriptor of a living process is what a new one would be.
std::shared_ptr<const UniqueFd> open_pidfd(pid_t pid) {
  static SharedFds& known = *new SharedFds;
  return known.share(static_cast<uint64_t>(pid), alive,
                     [pid] { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); });
}

bool has_ended(const UniqueFd& pidfd) { return !alive(pidfd.get()); }

bool exists(pid_t pid) { return ::kill(pid, 0) == 0 || errno != ESRCH; }

}  // namespace ringdp::transport
