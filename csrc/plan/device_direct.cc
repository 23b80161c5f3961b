#include "plan/device_builder.h"
#include "plan/device_texts.h"

namespace ringdp::plan {

namespace {

// Where this rank's slice of the sum goes.
DeviceRef result_of(const DeviceProblem& problem, const Extent& slice) {
  switch (problem.what) {
    case Collective::kReduceScatter: return DeviceBuilder::output(0);
    case Collective::kReduce: return DeviceBuilder::output(slice.begin, problem.root);
    default: return DeviceBuilder::output(slice.begin, kEverybody);
  }
}

}  // namespace

// Everybody's tensors are there once all have entered. Only the owner of a slice reads it, so its result may lie where
// the inputs were; nobody leaves before all slices have come.
DevicePlan device_direct(const DeviceProblem& problem) {
  const bool scatter = problem.what == Collective::kReduceScatter;
  const int64_t elements = scatter ? problem.count * problem.world : problem.count;
  const Extent mine = device_chunk(problem, elements, problem.rank);
  DeviceBuilder builder("direct", problem, elements, problem.count);
  builder.meet_all(kEntrySlot);
  builder.sum(DeviceBuilder::input(mine.begin, kEverybody), result_of(problem, mine), mine.count());
  builder.meet_all(kExitSlot);
  return builder.finish();
}

}  // namespace ringdp::plan
