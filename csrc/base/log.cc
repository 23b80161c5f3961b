#include "base/log.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace ringdp {
namespace {

std::atomic<LogLevel> threshold{LogLevel::kWarning};
std::atomic<int> dropped{0};  // lines since the last one that was written

// A driver thread must not wait for a launcher that does not read its pipe, or for a terminal that was stopped.
bool write_without_waiting(std::string line) {
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&room, 1, 0) != 1 || (room.revents & POLLOUT) == 0) return false;
  iovec bytes{line.data(), line.size()};
  struct stat status {};
  if (::fstat(STDERR_FILENO, &status) == 0 && S_ISFIFO(status.st_mode)) {
    // Others may have filled it since. Kernels that cannot do this without waiting return an error.
    const auto written = ::pwritev2(STDERR_FILENO, &bytes, 1, -1, RWF_NOWAIT);
    if (written >= 0 || errno == EAGAIN) return written == static_cast<ssize_t>(line.size());
  }
  return ::write(STDERR_FILENO, line.data(), line.size()) == static_cast<ssize_t>(line.size());
}

}  // namespace

void set_log_level(LogLevel level) { threshold.store(level, std::memory_order_relaxed); }

bool log_enabled(LogLevel level) { return level <= threshold.load(std::memory_order_relaxed); }

void log_line(LogLevel level, const std::string& who, const std::string& text) {
  if (!log_enabled(level)) return;
  static constexpr const char* kNames[] = {"error", "warning", "info", "debug"};
  const std::string from = "[ringdp" + (who.empty() ? "" : " " + who) + "] ";
  const int lost = dropped.exchange(0);
  const std::string earlier =
      lost == 0 ? "" : from + "warning: stderr was not read, so " + std::to_string(lost) + " lines were lost here\n";
  const std::string line = from + kNames[static_cast<int>(level)] + ": " + text + "\n";
  if (!write_without_waiting(earlier + line)) dropped += lost + 1;
}

}  // namespace ringdp
