#include "plan/plan.h"

#include <algorithm>
#include <numeric>

#include "base/named.h"

namespace ringdp::plan {

const char* name_of(Collective what) {
  static constexpr const char* kNames[kCollectiveCount] = {"all_reduce", "broadcast", "all_gather",
                                                           "reduce_scatter", "barrier", "reduce",
                                                           "gather", "scatter", "all_to_all"};
  const auto i = static_cast<int>(what);
  return i < kCollectiveCount ? kNames[i] : "unknown collective";
}

Collective collective_named(const std::string& name) {
  return enumerator_named<Collective>(name, kCollectiveCount, "a collective");
}

bool Problem::travels_encoded() const {
  return (what == Collective::kAllReduce || what == Collective::kReduceScatter) && is_encoded(wire, dtype, op);
}

bool Problem::has_parts() const {
  return what == Collective::kAllGather || what == Collective::kReduceScatter || what == Collective::kGather ||
         what == Collective::kScatter;
}

int64_t Problem::largest_part() const {
  return counts.empty() ? count : *std::max_element(counts.begin(), counts.end());
}

int64_t Problem::shared_bytes() const {
  if (what == Collective::kAllToAll || what == Collective::kBarrier) return 0;
  int64_t elements = has_parts() ? world * count : count;
  if (!counts.empty()) elements = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  return elements * size_of(dtype);
}

bool Problem::overflows_caches() const {
  int64_t written = 0;
  switch (what) {
    case Collective::kBroadcast:
    case Collective::kAllGather: written = world * shared_bytes(); break;
    case Collective::kGather:
    case Collective::kScatter: written = shared_bytes(); break;
    case Collective::kAllToAll:
      for (int q = 0; q < world; ++q) written += world * received_from(q) * size_of(dtype);
      break;
    default: break;  // sums write where they have read
  }
  return written > past_caches_bytes;
}

int64_t bytes_of(const Plan& plan, const Ref& ref) {
  if (ref.form == Form::kEncoded) return encoded_bytes(plan.wire, ref.count);
  return ref.count * size_of(ref.form == Form::kWide ? wide_of(plan.dtype) : plan.dtype);
}

}  // namespace ringdp::plan
