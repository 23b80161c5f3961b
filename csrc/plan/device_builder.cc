#include "plan/device_builder.h"

#include <algorithm>

#include "base/error.h"

namespace ringdp::plan {

DeviceBuilder::DeviceBuilder(const std::string& algorithm, const DeviceProblem& problem, int64_t input,
                             int64_t output) {
  plan_.algorithm = algorithm;
  plan_.what = problem.what;
  plan_.dtype = problem.dtype;
  plan_.op = problem.op;
  plan_.rank = problem.rank;
  plan_.world = problem.world;
  plan_.input = input;
  plan_.output = output;
}

void DeviceBuilder::flag(DeviceVerb verb, int peer, DeviceSlot slot, uint16_t value) {
  DeviceStep step;
  step.verb = verb;
  step.peer = static_cast<int8_t>(peer);
  step.slot = slot;
  step.value = value;
  plan_.steps.push_back(step);
}

void DeviceBuilder::post(int peer, DeviceSlot slot) { flag(DeviceVerb::kPost, peer, slot, ++posted_[peer][slot]); }

void DeviceBuilder::await(int peer, DeviceSlot slot) { flag(DeviceVerb::kAwait, peer, slot, ++awaited_[peer][slot]); }

void DeviceBuilder::meet(DeviceSlot slot, const std::vector<int>& peers) {
  for (const int peer : peers) post(peer, slot);
  for (const int peer : peers) await(peer, slot);
}

void DeviceBuilder::meet_all(DeviceSlot slot) {
  std::vector<int> peers;
  for (int k = 1; k < plan_.world; ++k) peers.push_back((plan_.rank + k) % plan_.world);
  meet(slot, peers);
}

DeviceRef DeviceBuilder::stage(int64_t at, int rank, bool wide) const {
  const int64_t per_wide = size_of(wide_of(plan_.dtype)) / size_of(plan_.dtype);
  return ref(DeviceSpace::kStage, rank, wide, wide ? at : at * per_wide);
}

void DeviceBuilder::need_stage(const DeviceRef& ref, int64_t count) {
  if (ref.space != DeviceSpace::kStage) return;
  plan_.stage_bytes = std::max(plan_.stage_bytes, bytes_of(plan_, ref, ref.offset + count));
}

void DeviceBuilder::append(DeviceStep step) {
  if (step.count == 0) return;
  need_stage(step.from, step.count);
  need_stage(step.to, step.count);
  plan_.steps.push_back(step);
}

void DeviceBuilder::sum(const DeviceRef& from, const DeviceRef& to, int64_t count) {
  append({DeviceVerb::kSum, true, 0, 0, 0, from, {}, to, count});
}

void DeviceBuilder::add(const DeviceRef& from, const DeviceRef& addend, const DeviceRef& to, int64_t count) {
  append({DeviceVerb::kAdd, false, 0, 0, 0, from, addend, to, count});
}

void DeviceBuilder::add_last(const DeviceRef& from, const DeviceRef& addend, const DeviceRef& to, int64_t count) {
  append({DeviceVerb::kAdd, true, 0, 0, 0, from, addend, to, count});
}

void DeviceBuilder::copy(const DeviceRef& from, const DeviceRef& to, int64_t count) {
  append({DeviceVerb::kCopy, false, 0, 0, 0, from, {}, to, count});
}

void DeviceBuilder::push(const DeviceRef& from, int64_t count) {
  plan_.pushed_bytes = std::max(plan_.pushed_bytes, 2 * bytes_of(plan_, from, count));
  append({DeviceVerb::kPush, false, 0, 0, 0, from, {}, ref(DeviceSpace::kPushed, kEverybody, false, 0), count});
}

void DeviceBuilder::sum_pushed(const DeviceRef& own, const DeviceRef& to, int64_t count) {
  append({DeviceVerb::kSumPushed, true, 0, 0, 0, own, {}, to, count});
}

DevicePlan DeviceBuilder::finish() {
  if (plan_.steps.size() > static_cast<size_t>(kMaxDeviceSteps)) {
    throw Error(ErrorKind::kInvalidArgument,
                plan_.algorithm + " needs " + std::to_string(plan_.steps.size()) + " steps on rank " +
                    std::to_string(plan_.rank) + ", a kernel takes " + std::to_string(kMaxDeviceSteps) +
                    ": use larger segments or algorithm=direct");
  }
  return std::move(plan_);
}

}  // namespace ringdp::plan
