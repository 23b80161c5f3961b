#include "device/plan/check.h"

#include <array>

#include "base/error.h"

namespace ringdp::plan {
namespace {

class PlanCheck {
 public:
  explicit PlanCheck(const DevicePlan& plan) : plan_(plan) {}

  void run() {
    require(plan_.world >= 1 && plan_.world <= kMaxDeviceRanks, "its world is " + std::to_string(plan_.world));
    require(plan_.rank >= 0 && plan_.rank < plan_.world, "its rank is " + std::to_string(plan_.rank));
    require(plan_.steps.size() <= static_cast<size_t>(kMaxDeviceSteps), "it is too long");
    for (at_ = 0; at_ < plan_.steps.size(); ++at_) {
      const DeviceStep& step = plan_.steps[at_];
      is_flag(step) ? flag(step) : movement(step);
    }
  }

 private:
  void require(bool holds, const std::string& wrong) const {
    if (holds) return;
    const std::string step =
        at_ < plan_.steps.size() ? ", step " + std::to_string(at_) + " (" + text_of(plan_.steps[at_]) + ")" : "";
    throw Error(ErrorKind::kInternal,
                "device plan " + plan_.algorithm + " of rank " + std::to_string(plan_.rank) + step + ": " + wrong);
  }

  void flag(const DeviceStep& step) {
    require(step.peer >= 0 && step.peer < plan_.world && step.peer != plan_.rank, "there is no such peer");
    require(step.slot < kMaxDeviceSlots, "there is no such slot");
    uint16_t& last = (step.verb == DeviceVerb::kPost ? posted_ : awaited_)[step.peer][step.slot];
    require(step.value > last, "the last value was " + std::to_string(last));
    last = step.value;
  }

  void movement(const DeviceStep& step) const {
    require(step.count > 0 && step.count % pack_elements(plan_.dtype) == 0, "its count is no whole pack");
    const bool may_read_all = step.verb == DeviceVerb::kSum;
    const bool may_write_all = may_read_all || step.verb == DeviceVerb::kCopy || step.verb == DeviceVerb::kPush;
    buffer(step.from, step.count, may_read_all);
    if (step.verb == DeviceVerb::kAdd) buffer(step.addend, step.count, false);
    buffer(step.to, step.count, may_write_all);
    const bool adds = step.verb == DeviceVerb::kAdd;
    require(adds || (!step.from.wide && !step.to.wide), "only an addition has wide sums");
    const bool has_wide = wide_of(plan_.dtype) != plan_.dtype;
    require(!adds || !has_wide || step.to.wide == !step.finish, "a partial sum is wide, a finished one is not");
    const bool pushes = step.verb == DeviceVerb::kPush;
    require(pushes == (step.to.space == DeviceSpace::kPushed), "only a push goes to pushed memory");
  }

  void buffer(const DeviceRef& ref, int64_t count, bool may_be_all) const {
    const bool known =
        ref.rank == kOwnRank || (ref.rank >= 0 && ref.rank < plan_.world) || (ref.rank == kAllRanks && may_be_all);
    require(known, "there is no rank " + std::to_string(ref.rank) + " there");
    require(ref.offset >= 0 && ref.offset % pack_elements(plan_.dtype, ref.wide) == 0, "it starts within a pack");
    const int64_t end = bytes_of(plan_, ref, ref.offset + count);
    require(end <= size_of_space(ref.space), std::string(name_of(ref.space)) + " ends before");
  }

  int64_t size_of_space(DeviceSpace space) const {
    switch (space) {
      case DeviceSpace::kInput:
        return plan_.input * size_of(plan_.dtype);
      case DeviceSpace::kOutput:
        return plan_.output * size_of(plan_.dtype);
      case DeviceSpace::kStage:
        return plan_.stage_bytes;
      default:
        return plan_.pushed_bytes / 2;
    }
  }

  const DevicePlan& plan_;
  size_t at_ = 0;
  uint16_t posted_[kMaxDeviceRanks][kMaxDeviceSlots] = {}, awaited_[kMaxDeviceRanks][kMaxDeviceSlots] = {};
};

std::vector<uint16_t> values(const DevicePlan& plan, DeviceVerb verb, int peer, int slot) {
  std::vector<uint16_t> found;
  for (const DeviceStep& step : plan.steps) {
    if (step.verb == verb && step.peer == peer && step.slot == slot) found.push_back(step.value);
  }
  return found;
}

[[noreturn]] void refuse(const DevicePlan& plan, const std::string& wrong) {
  throw Error(ErrorKind::kInternal, "device plans " + plan.algorithm + ": " + wrong);
}

void check_pair(const DevicePlan& writer, const DevicePlan& reader) {
  for (int slot = 0; slot < kMaxDeviceSlots; ++slot) {
    const std::vector<uint16_t> posted = values(writer, DeviceVerb::kPost, reader.rank, slot);
    if (posted == values(reader, DeviceVerb::kAwait, writer.rank, slot)) continue;
    refuse(writer, "rank " + std::to_string(reader.rank) + " does not await what rank " + std::to_string(writer.rank) +
                       " posts to slot " + name_of(static_cast<DeviceSlot>(slot)));
  }
}

// Each rank advances while its flags are posted. Flags only increase, so the order in which ranks advance is
// irrelevant.
class FlagRun {
 public:
  explicit FlagRun(const std::vector<DevicePlan>& plans) : plans_(plans), next_(plans.size()) {}

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < plans_.size(); ++r) moved |= advance(r);
    }
    for (size_t r = 0; r < plans_.size(); ++r) {
      if (next_[r] == plans_[r].steps.size()) continue;
      refuse(plans_[r], "rank " + std::to_string(r) + " never gets past step " + std::to_string(next_[r]) + " (" +
                            text_of(plans_[r].steps[next_[r]]) + ")");
    }
  }

 private:
  bool advance(size_t rank) {
    const size_t start = next_[rank];
    const std::vector<DeviceStep>& steps = plans_[rank].steps;
    for (; next_[rank] < steps.size(); ++next_[rank]) {
      const DeviceStep& step = steps[next_[rank]];
      if (step.verb == DeviceVerb::kPost) flags_[step.peer][rank][step.slot] = step.value;
      if (step.verb == DeviceVerb::kPush) ++pushed_;
      if (step.verb == DeviceVerb::kAwait && flags_[rank][step.peer][step.slot] < step.value) break;
      if (step.verb == DeviceVerb::kSumPushed && pushed_ < plans_.size()) break;
    }
    return next_[rank] != start;
  }

  const std::vector<DevicePlan>& plans_;
  std::vector<size_t> next_;
  std::array<std::array<std::array<uint16_t, kMaxDeviceSlots>, kMaxDeviceRanks>, kMaxDeviceRanks> flags_ = {};
  size_t pushed_ = 0;
};

}  // namespace

void check(const DevicePlan& plan) { PlanCheck(plan).run(); }

void check_together(const std::vector<DevicePlan>& plans) {
  for (size_t r = 0; r < plans.size(); ++r) {
    check(plans[r]);
    if (plans[r].rank == static_cast<int>(r) && plans[r].world == static_cast<int>(plans.size())) continue;
    refuse(plans[r], "plan " + std::to_string(r) + " of " + std::to_string(plans.size()) + " is of rank " +
                         std::to_string(plans[r].rank) + " of " + std::to_string(plans[r].world));
  }
  for (const DevicePlan& writer : plans) {
    for (const DevicePlan& reader : plans) check_pair(writer, reader);
  }
  FlagRun(plans).run();
}

}  // namespace ringdp::plan
