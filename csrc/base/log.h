// Log lines on stderr: "[ringdp rank 2/4] warning: ...". Threshold from RINGDP_LOG.
#pragma once
#include <string>

namespace ringdp {

enum class LogLevel { kError, kWarning, kInfo, kDebug };

void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);

// One write(2) per line, so lines of several ranks do not mix. Never waits: a line for which stderr has no room is
// lost, and the next one reports it. Thread-safe. `who` is "rank 2/4" or "".
void log_line(LogLevel level, const std::string& who, const std::string& text);

}  // namespace ringdp
