// When a wait for other ranks is worth a warning. Of one group, by its driver.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace ringdp::comm {

class Lateness {
 public:
  // late_ms: every wait of so long is reported. 0: only where there is trouble, which is a process that is stopped, or
  // a wait that is long also for the call in which it is, once for each call.
  explicit Lateness(int64_t late_ms) : late_ms_(late_ms) {}

  // Whether a wait of so many seconds in `call` is to be reported. `stopped`: whether a process that it waits for is;
  // asked only where it decides.
  bool due(const std::string& call, double seconds, const std::function<bool()>& stopped);
  // How long `call` has taken.
  void took(const std::string& call, double seconds);
  // Whether a wait is so short that it is never reported and teaches nothing.
  bool is_short(double seconds) const;

  static constexpr double kStoppedS = 0.5, kSlowS = 10, kTimesUsual = 20;
  static constexpr size_t kMostCalls = 256;  // those after them count as one

 private:
  struct History {
    double usual = 0;  // the mean, in seconds, of those that were not short
    int waits = 0;
    bool reported = false;
  };
  History& history_of(const std::string& call);

  const int64_t late_ms_;
  std::map<std::string, History> calls_;
};

}  // namespace ringdp::comm
