// Which addresses devices reach.
#include <map>
#include <mutex>

#include "stand_in/memory.h"

namespace stand_in {
namespace {

struct Ranges {
  std::mutex mutex;  // guards bytes
  std::map<uintptr_t, size_t> bytes;
};

Ranges& ranges() {
  static auto* const instance = new Ranges;
  return *instance;
}

uintptr_t number_of(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

}  // namespace

void add_reachable(void* memory, size_t bytes) {
  const std::lock_guard lock(ranges().mutex);
  ranges().bytes[number_of(memory)] = bytes;
}

void remove_reachable(void* memory) {
  const std::lock_guard lock(ranges().mutex);
  ranges().bytes.erase(number_of(memory));
}

bool is_device_memory(const void* memory, size_t bytes) {
  const std::lock_guard lock(ranges().mutex);
  auto after = ranges().bytes.upper_bound(number_of(memory));
  if (after == ranges().bytes.begin()) return false;
  const auto& [begin, size] = *--after;
  return number_of(memory) + bytes <= begin + size;
}

}  // namespace stand_in
