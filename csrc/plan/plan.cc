#include "plan/plan.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"

namespace ringdp::plan {
namespace {

constexpr bool are_in_order() {
  for (int i = 0; i < kCollectiveCount; ++i) {
    if (static_cast<int>(kCollectives[i].what) != i) return false;
  }
  return true;
}
static_assert(are_in_order());

}  // namespace

const char* name_of(Collective what) {
  return static_cast<int>(what) < kCollectiveCount ? traits_of(what).name : "unknown collective";
}

Collective collective_named(const std::string& name) {
  return enumerator_named<Collective>(name, kCollectiveCount, "a collective");
}

bool Problem::travels_encoded() const {
  return traits().is(kReduces) && traits().root == Root::kNone && is_encoded(wire, dtype, op);
}

bool Problem::sums_along_tree() const {
  const bool sums = op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kPremulSum;
  return along_tree && traits().is(kReduces) && sums && is_inexact(dtype);
}

int Problem::most_contributed() const {
  int most = 1;
  for (int q = 0; q < world; ++q) most = std::max(most, contributed(q));
  return most;
}

int64_t Problem::largest_part() const {
  return counts.empty() ? count : *std::max_element(counts.begin(), counts.end());
}

int64_t Problem::total_bytes() const {
  if (traits().has_splits() || traits().inputs == Tensors::kNone) return 0;
  int64_t elements = has_parts() ? world * count : count;
  if (!counts.empty()) elements = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  return elements * size_of(dtype);
}

bool Problem::overflows_caches() const {
  if (traits().is(kReduces)) return false;  // reductions write memory that they have just read
  const bool once = traits().outputs == Tensors::kPart || traits().root == Root::kWrites;
  int64_t written = once ? total_bytes() : world * total_bytes();
  for (int q = 0; traits().has_splits() && q < world; ++q) written += world * received_from(q) * size_of(dtype);
  return written > nontemporal_bytes;
}

int64_t bytes_of(const Plan& plan, const Ref& ref) {
  if (ref.form == Form::kEncoded) return encoded_bytes(plan.wire, ref.count);
  return ref.count * size_of(ref.form == Form::kWide ? wide_of(plan.dtype) : plan.dtype);
}

bool has_barriers(const Plan& plan) {
  return std::any_of(plan.channels.begin(), plan.channels.end(), [](const Channel& channel) {
    return std::any_of(channel.steps.begin(), channel.steps.end(),
                       [](const Step& step) { return step.verb == Verb::kArrive; });
  });
}

}  // namespace ringdp::plan
