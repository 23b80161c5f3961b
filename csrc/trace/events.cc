#include "trace/events.h"

#include <algorithm>
#include <cstring>

namespace ringdp::trace {

const char* name_of(Kind kind) {
  static constexpr const char* kNames[kKindCount] = {"enqueued", "started", "arrived",  "blocked",  "finished",
                                                     "failed",   "waited",  "forward",  "backward", "ready",
                                                     "launched", "done",    "computed", "stepped",  "regrouped"};
  return kNames[static_cast<int>(kind)];
}

void Ring::write(const Event& event) {
  if (capacity_ == 0) return;
  const uint64_t ticket = tickets_.fetch_add(1, std::memory_order_relaxed);
  Slot& slot = slots_[ticket % capacity_];
  uint64_t stamp = slot.stamp.load(std::memory_order_relaxed);
  const bool is_free = stamp % 2 == 0 && stamp < 2 * ticket + 2;
  if (!is_free || !slot.stamp.compare_exchange_strong(stamp, 2 * ticket + 1, std::memory_order_acq_rel)) {
    lost_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  uint64_t words[kWords] = {};
  std::memcpy(words, &event, sizeof event);
  // Release: a reader that sees a word of this event finds an odd or a new stamp afterwards.
  for (size_t i = 0; i < kWords; ++i) slot.words[i].store(words[i], std::memory_order_release);
  slot.stamp.store(2 * ticket + 2, std::memory_order_release);
}

std::vector<Event> Ring::read() const {
  std::vector<Event> events;
  for (size_t at = 0; at < capacity_; ++at) {
    const Slot& slot = slots_[at];
    const uint64_t before = slot.stamp.load(std::memory_order_acquire);
    if (before == 0 || before % 2 != 0) continue;
    uint64_t words[kWords];
    for (size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
    if (slot.stamp.load(std::memory_order_relaxed) != before) continue;
    std::memcpy(static_cast<void*>(&events.emplace_back()), words, sizeof(Event));
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.time_ns < b.time_ns; });
  return events;
}

}  // namespace ringdp::trace
