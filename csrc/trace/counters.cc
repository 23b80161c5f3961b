#include "trace/counters.h"

#include <algorithm>

namespace ringdp::trace {

Delay delay_of(const std::vector<int64_t>& waits_ns) {
  if (waits_ns.size() < 2) return {};
  const auto least = std::min_element(waits_ns.begin(), waits_ns.end());
  if (*least < 0) return {};
  int64_t next = INT64_MAX;
  for (auto wait = waits_ns.begin(); wait != waits_ns.end(); ++wait) {
    if (wait != least) next = std::min(next, *wait);
  }
  return {static_cast<int>(least - waits_ns.begin()), next - *least};
}

}  // namespace ringdp::trace
