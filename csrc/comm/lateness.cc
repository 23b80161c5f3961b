#include "comm/lateness.h"

#include <algorithm>

namespace ringdp::comm {

bool Lateness::is_short(double seconds) const {
  return seconds < (late_ms_ > 0 ? static_cast<double>(late_ms_) / 1000 : kStoppedS);
}

bool Lateness::due(const std::string& call, double seconds, const std::function<bool()>& stopped) {
  if (is_short(seconds)) return false;
  if (late_ms_ > 0 || stopped()) return true;
  History& history = history_of(call);
  if (history.reported || seconds < std::max(kSlowS, kTimesUsual * history.usual)) return false;
  history.reported = true;
  return true;
}

void Lateness::took(const std::string& call, double seconds) {
  if (late_ms_ > 0 || is_short(seconds)) return;
  History& history = history_of(call);
  history.usual += (seconds - history.usual) / ++history.waits;
}

Lateness::History& Lateness::history_of(const std::string& call) {
  const bool new_one_fits = calls_.size() < kMostCalls;
  return calls_[new_one_fits || calls_.count(call) != 0 ? call : ""];
}

}  // namespace ringdp::comm
