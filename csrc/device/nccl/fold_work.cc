#include "device/nccl/fold_work.h"

#include <algorithm>

#include "base/error.h"

namespace ringdp::gpu {
namespace {

using plan::DeviceRef;
using plan::DeviceSpace;
using plan::DeviceStep;
using plan::DeviceVerb;

bool is_wide(const plan::Ref& ref) { return ref.form == plan::Form::kWide; }

bool fits_one_sum(const Fold& fold) {
  const bool is_raw = !fold.sources[0].wide || wide_of(fold.dtype) == fold.dtype;
  return fold.finish && is_raw && fold.sources.size() <= static_cast<size_t>(plan::kMaxDeviceRanks);
}

// In one step, as if each source were the tensor of a rank.
void sum_at_once(const Fold& fold, Work& work) {
  work.world = static_cast<int32_t>(fold.sources.size());
  for (size_t r = 0; r < fold.sources.size(); ++r) work.input[r] = fold.sources[r].at;
  work.output[0] = fold.result.at;
  DeviceStep& step = work.step[work.steps++];
  step.verb = DeviceVerb::kSum;
  step.from = {DeviceSpace::kInput, plan::kAllRanks, false, 0};
  step.to = {DeviceSpace::kOutput, plan::kOwnRank, false, 0};
  step.count = fold.count;
}

// One source after the other; every element stays with one thread, so no barrier is needed.
void sum_in_turn(const Fold& fold, Work& work) {
  const auto lower = [](const Fold::Operand& a, const Fold::Operand& b) { return a.at < b.at; };
  char* const base = std::min_element(fold.sources.begin(), fold.sources.end(), lower)->at;
  const auto source = [&](size_t k) {
    const Fold::Operand& operand = fold.sources[k];
    const int64_t size = size_of(operand.wide ? wide_of(fold.dtype) : fold.dtype);
    return DeviceRef{DeviceSpace::kInput, plan::kOwnRank, operand.wide, (operand.at - base) / size};
  };
  const DeviceRef spare = {DeviceSpace::kStage, plan::kOwnRank, true, 0};
  work.world = 1;
  work.input[0] = base;
  work.stage[0] = fold.spare;
  work.output[0] = fold.result.at;
  for (size_t k = 1; k < fold.sources.size(); ++k) {
    const bool last = k + 1 == fold.sources.size();
    DeviceStep& step = work.step[work.steps++];
    step.verb = DeviceVerb::kAdd;
    step.finish = last && fold.finish;
    step.from = k == 1 ? source(0) : spare;
    step.addend = source(k);
    step.to = last ? DeviceRef{DeviceSpace::kOutput, plan::kOwnRank, fold.result.wide, 0} : spare;
    step.count = fold.count;
  }
}

}  // namespace

bool is_all_wide(const plan::Step& step) {
  return std::all_of(step.srcs.begin(), step.srcs.end(), is_wide) && is_wide(step.dsts[0]);
}

Fold fold_of(const plan::Plan& plan, const plan::Step& step, const std::function<char*(const plan::Ref&)>& address_of) {
  const bool in_wide = is_all_wide(step);
  const auto operand = [&](const plan::Ref& ref) { return Fold::Operand{address_of(ref), is_wide(ref) && !in_wide}; };
  Fold fold;
  fold.dtype = in_wide ? wide_of(plan.dtype) : plan.dtype;
  for (const plan::Ref& ref : step.srcs) fold.sources.push_back(operand(ref));
  fold.result = operand(step.dsts[0]);
  fold.count = step.dsts[0].count;
  fold.finish = step.finish || in_wide;
  return fold;
}

bool only_rounds(const plan::Plan& plan, const plan::Step& step) {
  return step.verb == plan::Verb::kFold && step.srcs.size() == 1 && step.srcs[0].form == plan::Form::kWide &&
         step.dsts[0].form == plan::Form::kRaw && wide_of(plan.dtype) != plan.dtype;
}

int64_t spare_bytes(const plan::Plan& plan, const plan::Step& step) {
  if (step.verb != plan::Verb::kFold || step.srcs.size() == 2 || only_rounds(plan, step)) return 0;
  const Fold fold = fold_of(plan, step, [](const plan::Ref&) { return nullptr; });
  return fits_one_sum(fold) ? 0 : fold.count * size_of(wide_of(plan.dtype));
}

Work work_of(const Fold& fold) {
  const size_t sources = fold.sources.size();
  const bool is_some = sources > 1 || (sources == 1 && fits_one_sum(fold));
  if (!is_some || sources > plan::kMaxDeviceSteps || fold.result.wide == fold.finish) {
    throw Error(ErrorKind::kInvalidArgument, "a fold of " + std::to_string(sources) + " sources" +
                                                 (fold.finish ? "" : ", unfinished") + " has no kernel");
  }
  Work work{};
  fits_one_sum(fold) ? sum_at_once(fold, work) : sum_in_turn(fold, work);
  return work;
}

}  // namespace ringdp::gpu
