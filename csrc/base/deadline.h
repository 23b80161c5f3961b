// A point in monotonic time after which a wait gives up. Passed down by value; never a duration.
#pragma once
#include <algorithm>
#include <chrono>

namespace ringdp {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(std::chrono::nanoseconds duration) {
    const auto now = Clock::now();
    const auto room = Clock::time_point::max() - now;
    return Deadline(duration >= room ? Clock::time_point::max() : now + duration);
  }
  static Deadline never() { return Deadline(Clock::time_point::max()); }

  bool passed() const { return Clock::now() >= at_; }
  Clock::time_point at() const { return at_; }

  // at(), but at most a second from now: a condition variable cannot wait until time_point::max().
  Clock::time_point next_look() const { return earlier(*this, after(std::chrono::seconds(1))).at_; }

  // Milliseconds left, rounded up and clamped to [0, cap]: what poll() takes.
  int poll_ms(int cap = 1000) const {
    const auto left = at_ - Clock::now();
    if (left >= std::chrono::milliseconds(cap)) return cap;
    return std::max<int>(0, std::chrono::ceil<std::chrono::milliseconds>(left).count());
  }
  friend Deadline earlier(Deadline a, Deadline b) { return a.at_ < b.at_ ? a : b; }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

inline double seconds_since(Deadline::Clock::time_point start) {
  return std::chrono::duration<double>(Deadline::Clock::now() - start).count();
}

}  // namespace ringdp
