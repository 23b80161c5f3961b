// Writes a device plan: steps in order, and flags whose values grow by one per slot and pair.
//
// Single-threaded; used for one plan. Places and counts are in raw elements, whole packs. Data steps of nothing are
// left out, flags never are: who hears from whom must not depend on the size.
#pragma once
#include <string>
#include <vector>

#include "plan/device_plan.h"

namespace ringdp::plan {

class DeviceBuilder {
 public:
  // `input` and `output`: elements of every rank's tensors.
  DeviceBuilder(const std::string& algorithm, const DeviceProblem& problem, int64_t input, int64_t output);

  void post(int peer, DeviceSlot slot);
  void await(int peer, DeviceSlot slot);
  void meet(DeviceSlot slot, const std::vector<int>& peers);  // posts to all of these and awaits them
  void meet_all(DeviceSlot slot);                             // everybody, beginning with the next rank

  void sum(const DeviceRef& from, const DeviceRef& to, int64_t count);
  void add(const DeviceRef& from, const DeviceRef& addend, const DeviceRef& to, int64_t count);  // a wide partial sum
  void add_last(const DeviceRef& from, const DeviceRef& addend, const DeviceRef& to, int64_t count);
  void copy(const DeviceRef& from, const DeviceRef& to, int64_t count);
  void push(const DeviceRef& from, int64_t count);
  void sum_pushed(const DeviceRef& own, const DeviceRef& to, int64_t count);

  static DeviceRef input(int64_t at, int rank = kOwnRank) { return ref(DeviceSpace::kInput, rank, false, at); }
  static DeviceRef output(int64_t at, int rank = kOwnRank) { return ref(DeviceSpace::kOutput, rank, false, at); }
  // Room for element `at`, in either form: the stage has a wide element's bytes for each. A plan uses one form for each
  // place: blocks share out a raw step and a wide one alike, so their bytes differ.
  DeviceRef stage(int64_t at, int rank, bool wide) const;

  // InvalidArgument when there are more steps than a kernel takes.
  DevicePlan finish();

 private:
  static DeviceRef ref(DeviceSpace space, int rank, bool wide, int64_t offset) {
    return {space, static_cast<int8_t>(rank), wide, offset};
  }
  void flag(DeviceVerb verb, int peer, DeviceSlot slot, uint16_t value);
  void append(DeviceStep step);
  void need_stage(const DeviceRef& ref, int64_t count);

  DevicePlan plan_;
  uint16_t posted_[kMaxDeviceRanks][kMaxDeviceSlots] = {}, awaited_[kMaxDeviceRanks][kMaxDeviceSlots] = {};
};

}  // namespace ringdp::plan
