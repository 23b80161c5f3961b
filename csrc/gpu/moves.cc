#include "gpu/moves.h"

#include <algorithm>

namespace ringdp::gpu {
namespace {

using plan::DeviceStep;
using plan::DeviceVerb;

bool adds(const DeviceStep& step) {
  return step.verb == DeviceVerb::kSum || step.verb == DeviceVerb::kAdd || step.verb == DeviceVerb::kSumPushed;
}

}  // namespace

bool only_moves(const Work& work) { return std::none_of(work.step, work.step + work.steps, adds); }

void count_as_float32(Work& work, DType element) {
  const int64_t from = size_of(element), to = size_of(DType::kF32);
  for (int s = 0; s < work.steps; ++s) {
    DeviceStep& step = work.step[s];
    for (int64_t* const elements : {&step.count, &step.from.offset, &step.to.offset}) *elements = *elements * from / to;
  }
}

}  // namespace ringdp::gpu
