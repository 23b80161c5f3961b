#include "plan/device_builder.h"
#include "plan/device_texts.h"

namespace ringdp::plan {

// Everybody reads everything, and the result may lie where the input was: so what is read is a copy in the arena, which
// must outlive the slowest reader.
DevicePlan device_one_shot(const DeviceProblem& problem) {
  DeviceBuilder builder("one_shot", problem, problem.count, problem.count);
  builder.copy(DeviceBuilder::input(0), builder.stage(0, kOwnRank, false), problem.count);
  builder.meet_all(kEntrySlot);
  builder.sum(builder.stage(0, kEverybody, false), DeviceBuilder::output(0), problem.count);
  builder.meet_all(kExitSlot);
  return builder.finish();
}

// The same without waiting for anybody but the data: their flags come with them, and the next epoch uses other memory.
DevicePlan device_push(const DeviceProblem& problem) {
  DeviceBuilder builder("push", problem, problem.count, problem.count);
  builder.push(DeviceBuilder::input(0), problem.count);
  builder.sum_pushed(DeviceBuilder::input(0), DeviceBuilder::output(0), problem.count);
  return builder.finish();
}

}  // namespace ringdp::plan
