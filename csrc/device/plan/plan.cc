#include "device/plan/plan.h"

namespace ringdp::plan {
namespace {

int ranks_behind(const DevicePlan& plan, const DeviceRef& ref) { return ref.rank == kAllRanks ? plan.world : 1; }

bool includes_own(const DevicePlan& plan, const DeviceRef& ref) {
  return ref.rank == kAllRanks || ref.rank == kOwnRank || ref.rank == plan.rank;
}

void count(const DevicePlan& plan, const DeviceRef& ref, int64_t elements, int64_t* here, int64_t* there) {
  const int64_t bytes = bytes_of(plan, ref, elements);
  const int own = includes_own(plan, ref) ? 1 : 0;
  *here += own * bytes;
  *there += (ranks_behind(plan, ref) - own) * bytes;
}

std::string text_of(const DeviceRef& ref) {
  std::string text = name_of(ref.space);
  if (ref.rank == kAllRanks) text += " of all";
  if (ref.rank >= 0) text += " of " + std::to_string(ref.rank);
  if (ref.wide) text += ", wide,";
  return ref.offset == 0 && !ref.wide ? text : text + " at " + std::to_string(ref.offset);
}

// Also for invalid steps: a broken plan can be printed.
template <size_t kCount>
const char* name_in(const char* const (&names)[kCount], size_t number) {
  return number < kCount ? names[number] : "unknown";
}

}  // namespace

int64_t pack_elements(DType dtype, bool wide) { return kDevicePackBytes / size_of(wide ? wide_of(dtype) : dtype); }

int64_t bytes_of(const DevicePlan& plan, const DeviceRef& ref, int64_t count) {
  return count * size_of(ref.wide ? wide_of(plan.dtype) : plan.dtype);
}

DeviceTraffic traffic_of(const DevicePlan& plan) {
  DeviceTraffic sums;
  for (const DeviceStep& step : plan.steps) {
    if (is_flag(step)) continue;
    const int64_t pushed = 2 * (plan.world - 1) * bytes_of(plan, step.from, step.count);
    count(plan, step.from, step.count, &sums.read_local, &sums.read_remote);
    if (step.verb == DeviceVerb::kAdd) count(plan, step.addend, step.count, &sums.read_local, &sums.read_remote);
    if (step.verb == DeviceVerb::kSumPushed) sums.read_local += pushed;
    if (step.verb == DeviceVerb::kPush) {
      sums.written_remote += pushed;
    } else {
      count(plan, step.to, step.count, &sums.written_local, &sums.written_remote);
    }
  }
  return sums;
}

const char* name_of(DeviceVerb verb) {
  static constexpr const char* kNames[] = {"post", "await", "sum", "add", "copy", "push", "sum pushed"};
  return name_in(kNames, static_cast<size_t>(verb));
}

const char* name_of(DeviceSpace space) {
  static constexpr const char* kNames[] = {"input", "output", "stage", "pushed"};
  return name_in(kNames, static_cast<size_t>(space));
}

const char* name_of(DeviceSlot slot) {
  static constexpr const char* kNames[] = {"entry", "up", "down", "exit"};
  return name_in(kNames, slot);
}

std::string text_of(const DeviceStep& step) {
  const std::string verb = name_of(step.verb);
  if (is_flag(step)) {
    const std::string flag =
        std::string(name_of(static_cast<DeviceSlot>(step.slot))) + " " + std::to_string(step.value);
    return verb + " " + flag + (step.verb == DeviceVerb::kPost ? " to " : " of ") + std::to_string(step.peer);
  }
  std::string text = verb + " " + std::to_string(step.count) + " elements: " + text_of(step.from);
  if (step.verb == DeviceVerb::kAdd) text += " + " + text_of(step.addend);
  return text + " -> " + text_of(step.to) + (step.finish ? ", finished" : "");
}

std::string text_of(const DevicePlan& plan) {
  std::string text = std::string(name_of(plan.what)) + " " + plan.algorithm + " " + name_of(plan.dtype) + " " +
                     name_of(plan.op) + ", rank " + std::to_string(plan.rank) + " of " + std::to_string(plan.world) +
                     ": " + std::to_string(plan.steps.size()) + " steps";
  for (size_t i = 0; i < plan.steps.size(); ++i) text += "\n" + std::to_string(i) + " " + text_of(plan.steps[i]);
  return text;
}

}  // namespace ringdp::plan
