#include "reducer/layout.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ringdp::reducer {
namespace {

// The bucket of a kind that is being filled.
struct Open {
  std::vector<size_t> members;
  int64_t bytes = 0;
  size_t closed = 0;         // buckets of this kind that are full
  size_t last_position = 0;  // of its latest member in the order
};

}  // namespace

Layout make_layout(const std::vector<Part>& parts, const std::vector<size_t>& order,
                   const std::vector<int64_t>& limits) {
  std::map<int64_t, Open> open;                                // by kind
  std::vector<std::pair<size_t, std::vector<size_t>>> closed;  // position of the last member, members
  for (size_t position = 0; position < order.size(); ++position) {
    const Part& part = parts[order[position]];
    if (part.alone) {
      closed.push_back({position, {order[position]}});
      continue;
    }
    Open& bucket = open[part.kind];
    const int64_t limit = limits[std::min(bucket.closed, limits.size() - 1)];
    if (part.bytes >= limit) {
      closed.push_back({position, {order[position]}});
      ++bucket.closed;
      continue;
    }
    bucket.members.push_back(order[position]);
    bucket.bytes += part.bytes;
    bucket.last_position = position;
    if (bucket.bytes < limit) continue;
    closed.emplace_back(position, std::exchange(bucket.members, {}));
    bucket.bytes = 0;
    ++bucket.closed;
  }
  for (auto& [kind, bucket] : open) {
    if (!bucket.members.empty()) closed.emplace_back(bucket.last_position, std::move(bucket.members));
  }
  std::sort(closed.begin(), closed.end());
  Layout layout;
  for (auto& [position, members] : closed) layout.push_back(std::move(members));
  return layout;
}

}  // namespace ringdp::reducer
