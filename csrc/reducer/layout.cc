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

int64_t rounded_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

}  // namespace

Layout make_layout(const std::vector<Part>& parts, const std::vector<size_t>& order, const std::vector<int64_t>& limits,
                   bool hard_limits) {
  std::map<int64_t, Open> open;                                // by kind
  std::vector<std::pair<size_t, std::vector<size_t>>> closed;  // position of the last member, members
  const auto close = [&](Open& bucket) {
    closed.emplace_back(bucket.last_position, std::exchange(bucket.members, {}));
    bucket.bytes = 0;
    ++bucket.closed;
  };
  const auto limit_of = [&](const Open& bucket) { return limits[std::min(bucket.closed, limits.size() - 1)]; };
  for (size_t position = 0; position < order.size(); ++position) {
    const Part& part = parts[order[position]];
    if (part.own_bucket) {
      closed.push_back({position, {order[position]}});
      continue;
    }
    Open& bucket = open[part.kind];
    if (part.bytes >= limit_of(bucket)) {
      closed.push_back({position, {order[position]}});
      ++bucket.closed;
      continue;
    }
    if (hard_limits && !bucket.members.empty() && bucket.bytes + part.bytes > limit_of(bucket)) close(bucket);
    bucket.members.push_back(order[position]);
    bucket.bytes += part.bytes;
    bucket.last_position = position;
    if (bucket.bytes >= limit_of(bucket)) close(bucket);
  }
  for (auto& [kind, bucket] : open) {
    if (!bucket.members.empty()) closed.emplace_back(bucket.last_position, std::move(bucket.members));
  }
  std::sort(closed.begin(), closed.end());
  Layout layout;
  for (auto& [position, members] : closed) layout.push_back(std::move(members));
  return layout;
}

Extent place(const std::vector<int64_t>& lengths, int64_t alignment, int64_t granularity) {
  Extent extent;
  for (const int64_t length : lengths) {
    const int64_t offset = rounded_up(extent.end, alignment);
    extent.offsets.push_back(offset);
    extent.end = offset + length;
  }
  extent.padded = rounded_up(extent.end, granularity);
  return extent;
}

}  // namespace ringdp::reducer
