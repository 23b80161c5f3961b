#include "collective/slot_path.h"

#include <algorithm>

namespace ringdp::collective {
namespace {

constexpr uint64_t kManyStages = 8;  // shorter plans live in the caches anyway
constexpr uint64_t kLookAgain = 64;  // one in so many plans takes the other way
constexpr size_t kEnough = 4;        // samples of one plan
constexpr double kWorth = 0.8;       // of the cost through the caches

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

bool is_slot(const plan::Ref& ref) { return ref.space == plan::Space::kSlot; }

bool touches_slots(const plan::Step& step) {
  return std::any_of(step.srcs.begin(), step.srcs.end(), is_slot) ||
         std::any_of(step.dsts.begin(), step.dsts.end(), is_slot);
}

SlotPath::Work work_of(const plan::Step& step) {
  if (step.verb == plan::Verb::kFold) return SlotPath::Work::kFold;
  return is_slot(step.dsts[0]) ? SlotPath::Work::kCopyIn : SlotPath::Work::kCopyOut;
}

}  // namespace

void SlotPath::begin(uint64_t stages) {
  if (const double cost = cost_of_plan(); cost > 0) cost_[past_] = cost;
  for (auto& samples : samples_) samples.clear();
  past_ = false;
  if (stages < kManyStages) return;
  const bool is_better = cost_[true] > 0 && cost_[true] < kWorth * cost_[false];
  past_ = is_better != (++plans_ % kLookAgain == 2);
}

void SlotPath::saw(Work work, size_t bytes, std::chrono::nanoseconds took) {
  samples_[static_cast<int>(work)].push_back(static_cast<double>(took.count()) / static_cast<double>(bytes));
}

// Medians, because a rank may be interrupted in the middle of a step.
double SlotPath::cost_of_plan() {
  double sum = 0;
  for (auto& samples : samples_) {
    if (samples.size() >= kEnough) sum += median(samples);
  }
  return sum;
}

SlotWatch::SlotWatch(SlotPath& path, const plan::Step& step, size_t bytes)
    : path_(path), step_(step), bytes_(bytes >= SlotPath::kLarge && touches_slots(step) ? bytes : 0) {
  if (bytes_ > 0) start_ = Clock::now();
}

SlotWatch::~SlotWatch() {
  if (bytes_ > 0) path_.saw(work_of(step_), bytes_, Clock::now() - start_);
}

}  // namespace ringdp::collective
