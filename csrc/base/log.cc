#include "base/log.h"

#include <unistd.h>

#include <atomic>

namespace ringdp {
namespace {

std::atomic<LogLevel> threshold{LogLevel::kWarning};

}  // namespace

void set_log_level(LogLevel level) { threshold.store(level, std::memory_order_relaxed); }

bool log_enabled(LogLevel level) { return level <= threshold.load(std::memory_order_relaxed); }

void log_line(LogLevel level, const std::string& who, const std::string& text) {
  if (!log_enabled(level)) return;
  static constexpr const char* kNames[] = {"error", "warning", "info", "debug"};
  const std::string line =
      "[ringdp" + (who.empty() ? "" : " " + who) + "] " + kNames[static_cast<int>(level)] + ": " + text + "\n";
  // A lost log line is not worth an error path.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace ringdp
