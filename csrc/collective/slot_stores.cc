#include "collective/slot_stores.h"

#include <algorithm>

namespace ringdp::collective {
namespace {

constexpr uint64_t kManyStages = 8;  // plans with fewer stay in the caches anyway
constexpr uint64_t kTryEvery = 64;   // one in this many plans uses the other kind of stores
constexpr size_t kEnough = 4;        // samples per plan and kind of work
constexpr double kWorth = 0.8;       // non-temporal stores must cost less than this part of the others

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

SlotStores::Work work_of(const plan::Step& step) {
  if (step.verb == plan::Verb::kFold) return SlotStores::Work::kFold;
  return is_slot(step.dsts[0]) ? SlotStores::Work::kCopyIn : SlotStores::Work::kCopyOut;
}

}  // namespace

void SlotStores::begin(uint64_t stages) {
  if (const double cost = cost_of_plan(); cost > 0) cost_[nontemporal_] = cost;
  for (auto& samples : samples_) samples.clear();
  nontemporal_ = false;
  if (stages < kManyStages) return;
  const bool is_better = cost_[true] > 0 && cost_[true] < kWorth * cost_[false];
  nontemporal_ = is_better != (++plans_ % kTryEvery == 2);
}

void SlotStores::measured(Work work, size_t bytes, std::chrono::nanoseconds took) {
  samples_[static_cast<int>(work)].push_back(static_cast<double>(took.count()) / static_cast<double>(bytes));
}

// Medians, because a rank may be interrupted in the middle of a step.
double SlotStores::cost_of_plan() {
  double sum = 0;
  for (auto& samples : samples_) {
    if (samples.size() >= kEnough) sum += median(samples);
  }
  return sum;
}

SlotTimer::SlotTimer(SlotStores& stores, const plan::Step& step, size_t bytes)
    : stores_(stores), step_(step), bytes_(bytes >= SlotStores::kLarge && touches_slots(step) ? bytes : 0) {
  if (bytes_ > 0) start_ = Clock::now();
}

SlotTimer::~SlotTimer() {
  if (bytes_ > 0) stores_.measured(work_of(step_), bytes_, Clock::now() - start_);
}

}  // namespace ringdp::collective
