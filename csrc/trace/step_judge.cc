#include "trace/step_judge.h"

#include <algorithm>
#include <cmath>

namespace ringdp::trace {
namespace {

constexpr double kFairPart = 0.05;              // of a step: what costs less is not said
constexpr double kEnough = 13.815510557964274;  // log(1e6)
constexpr double kWrong = 0.9;                  // how often it is so where something is wrong
// How often it is so by chance: as often as before, within these.
constexpr double kRarely = 1.0 / 3;
constexpr double kOften = 1.0 / 2;
constexpr double kMemory = 64;       // steps over which that is counted
constexpr size_t kFirst = 8;         // steps from which the usual exposed time is taken
constexpr double kFollows = 0.0001;  // of a step: by how much the usual exposed time can change in one
constexpr double kTimes = 2;         // the usual exposed time
constexpr size_t kKept = 512;        // steps that wait for other ranks' reports
constexpr double kMostSeconds = 1e9;

bool less_waits(const std::pair<size_t, double>& a, const std::pair<size_t, double>& b) { return a.second < b.second; }

// The rank that came last, and how much sooner the step had ended had it come with the one before it; like delay_of()
// in trace/counters.h, but of those ranks of which it is known.
std::pair<size_t, double> delayed(const std::vector<std::pair<size_t, double>>& waits) {
  const auto last = std::min_element(waits.begin(), waits.end(), less_waits);
  double next = INFINITY;
  for (auto wait = waits.begin(); wait != waits.end(); ++wait) {
    if (wait != last) next = std::min(next, wait->second);
  }
  return {last->first, next - last->second};
}

}  // namespace

bool are_times(std::span<const StepRow> rows) {
  const auto is_time = [](double s) { return s >= 0 && s < kMostSeconds; };  // false for NaN, too
  return std::all_of(rows.begin(), rows.end(), [&](const StepRow& row) {
    return row.seconds > 0 && is_time(row.seconds) && is_time(row.data) && is_time(row.compute) &&
           is_time(row.exposed) && is_time(row.communication);
  });
}

StepSums sums_of(std::span<const StepRow> rows) {
  StepSums sums;
  for (const StepRow& row : rows) {
    if (row.communication <= 0) continue;
    ++sums.rows;
    sums.exposed += row.exposed;
    sums.communication += row.communication;
  }
  return sums;
}

void Score::add(bool so) {
  const double chance = std::clamp(usual_, kRarely, kOften);
  usual_ += ((so ? 1.0 : 0.0) - usual_) / kMemory;
  if (!so && value_ == 0) return;
  value_ = std::max(0.0, value_ + (so ? std::log(kWrong / chance) : std::log((1 - kWrong) / (1 - chance))));
}

bool Score::is_enough() const { return value_ >= kEnough; }

void LateRank::add(size_t rank, double share) {
  const bool late = share >= kFairPart;
  if (late) scores_.emplace(rank, others_);
  for (auto& [other, score] : scores_) score.add(late && other == rank);
  others_.add(false);
}

std::optional<size_t> LateRank::found() const {
  for (const auto& [rank, score] : scores_) {
    if (score.is_enough()) return rank;
  }
  return std::nullopt;
}

void Exposure::add(double exposed) {
  if (usual_ < 0) {
    first_.push_back(exposed);
    if (first_.size() < kFirst) return;
    std::sort(first_.begin(), first_.end());
    usual_ = (first_[kFirst / 2 - 1] + first_[kFirst / 2]) / 2;
    return;
  }
  score_.add(exposed > kTimes * usual_ && exposed - usual_ >= kFairPart);
  usual_ = std::max(0.0, usual_ + (exposed > usual_ ? kFollows : -kFollows));
}

int64_t StepJudge::add(size_t rank, std::span<const StepRow> rows) {
  const int64_t before = latest_.at(rank);
  for (const StepRow& row : rows) {
    if (row.key <= latest_[rank]) continue;  // in a report keys grow
    waiting_[row.key].emplace_back(rank, row);
    latest_[rank] = row.key;
  }
  return before;
}

int64_t StepJudge::reached(std::span<const size_t> reporting) const {
  int64_t least = INT64_MAX;
  for (const size_t rank : reporting) least = std::min(least, latest_.at(rank));
  return least;
}

int64_t StepJudge::number_of(int64_t key) const {
  const auto at = waiting_.find(key);
  if (at == waiting_.end()) return 0;
  int64_t least = INT64_MAX;
  for (const auto& [rank, row] : at->second) least = std::min(least, row.number);
  return least;
}

std::vector<StepJudge::Found> StepJudge::judge(std::span<const size_t> reporting) {
  const int64_t limit = reached(reporting);
  std::vector<Found> found;
  while (!waiting_.empty() && waiting_.begin()->first <= limit) {
    auto node = waiting_.extract(waiting_.begin());
    const auto& rows = node.mapped();
    const bool is_complete = std::all_of(reporting.begin(), reporting.end(), [&](size_t rank) {
      return std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row.first == rank; });
    });
    if (!is_complete) continue;  // a rank that does less has left it out
    std::optional<Step> step = step_of(node.key(), std::move(node.mapped()));
    if (!step) continue;
    recent_.push_back(std::move(*step));
    if (recent_.size() > kRecent) recent_.pop_front();
    judge_step(found);
  }
  forgotten_ = std::max(forgotten_, limit);
  forget();
  return found;
}

std::optional<StepJudge::Step> StepJudge::step_of(int64_t key, std::vector<std::pair<size_t, StepRow>> rows) const {
  Step step{std::move(rows), {}};
  for (const auto& [rank, row] : step.rows) {
    if (row.number <= kWarmUp) return std::nullopt;
    step.waits.emplace_back(rank, row.exposed);
  }
  if (const auto delay = delays_.find(key); delay != delays_.end()) {
    step.waits.clear();
    for (size_t rank = 0; rank < latest_.size(); ++rank) {
      step.waits.emplace_back(rank, rank == delay->second.first ? 0.0 : delay->second.second);
    }
  }
  // Where only one rank reports, a step may be read before what its group counted of it is noted.
  if (step.waits.size() < 2) return std::nullopt;
  return step;
}

void StepJudge::judge_step(std::vector<Found>& found) {
  const auto all_recent = [&] { return std::vector<Step>(recent_.begin(), recent_.end()); };
  const Step& step = recent_.back();
  double took = 0;
  for (const auto& [rank, row] : step.rows) took += row.seconds / static_cast<double>(step.rows.size());
  const auto [last, lost] = delayed(step.waits);
  late_.add(last, lost / took);
  if (const std::optional<size_t> late = late_.found()) {
    late_ = {};
    found.push_back({late, 0, all_recent()});
  }
  // The rank that waits least waits for bytes only, and not for another rank.
  const StepRow& least = std::min_element(step.rows.begin(), step.rows.end(), [](const auto& a, const auto& b) {
                           return a.second.exposed < b.second.exposed;
                         })->second;
  if (least.communication <= 0 || step.rows.size() < latest_.size()) return;
  exposure_.add(least.exposed / least.seconds);
  if (!exposure_.is_found()) return;
  found.push_back({std::nullopt, exposure_.usual() * least.seconds, all_recent()});
  exposure_.begin_anew();
}

// The oldest where a rank does not come along, and what belongs to steps that are over.
void StepJudge::forget() {
  while (waiting_.size() > kKept) {
    forgotten_ = std::max(forgotten_, waiting_.begin()->first);
    waiting_.erase(waiting_.begin());
  }
  delays_.erase(delays_.begin(), delays_.upper_bound(forgotten_));
}

}  // namespace ringdp::trace
