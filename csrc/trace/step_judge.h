// Which rank makes the others wait, and whether overlap was lost, concluded from the steps of all ranks.
//
// Page's rule over Wald's sequential test ("Continuous inspection schemes", Biometrika 41, 1954; "Sequential analysis",
// 1947): a score is the logarithm of how much likelier the steps since some step are if something is wrong than if
// nothing is, and never below 0. In a healthy run the expected number of steps until a score is enough is at least a
// million, whatever the distribution of times is: a step only counts as one in which it was so or not.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace ringdp::trace {

// One step of one rank, as it travels in a report: in seconds, zeros where nothing is known.
struct StepRow {
  int64_t key = 0;           // collectives that the group had begun, equal on all ranks
  int64_t number = 0;        // steps since that rank began
  double seconds = 0;        // above 0
  double data = 0;           // between the step before and the forward pass
  double compute = 0;        // forward and backward passes
  double exposed = 0;        // the part of `communication` during which nothing was left to compute
  double communication = 0;  // with at least one collective in flight
};
static_assert(sizeof(StepRow) == 56 && std::endian::native == std::endian::little, "sent as it lies in memory");

// Whether these can be times of steps: each at least 0 and below 1e9 s.
bool are_times(std::span<const StepRow> rows);

// Of the rows with communication.
struct StepSums {
  size_t rows = 0;
  double exposed = 0, communication = 0;
};
StepSums sums_of(std::span<const StepRow> rows);

// How likely it is that something is wrong, and how often it has looked like that lately.
class Score {
 public:
  void add(bool so);  // one more step, in which it was so or was not
  double value() const { return value_; }
  bool is_enough() const;

 private:
  double value_ = 0;
  double usual_ = 0.5;  // part of the steps in which it was so
};

// Whether one rank makes the others wait: a score for each that was ever late, and that of all the others.
class LateRank {
 public:
  // One more step, of which the others waited this share for this rank alone.
  void add(size_t rank, double share);
  std::optional<size_t> found() const;  // the rank of which enough is known

 private:
  std::map<size_t, Score> scores_;
  Score others_;
};

// Whether communication is exposed that used to be hidden. Shares of a step.
class Exposure {
 public:
  void add(double exposed);  // one more step, with so much of it on the rank that waited least
  bool is_found() const { return score_.is_enough(); }
  double usual() const { return usual_; }  // before; below 0: not known yet
  void begin_anew() { score_ = {}; }       // what is usual stays

 private:
  Score score_;
  double usual_ = -1;
  std::vector<double> first_;  // what it will be taken from
};

// Judges the steps of a group as its ranks report them. One thread.
class StepJudge {
 public:
  static constexpr int64_t kWarmUp = 5;  // steps in which buckets are laid out anew and kernels chosen
  static constexpr size_t kRecent = 16;  // steps from which a finding's figures are

  struct Step {
    std::vector<std::pair<size_t, StepRow>> rows;  // by rank
    std::vector<std::pair<size_t, double>> waits;  // seconds, by rank: of at least two
  };
  struct Found {
    std::optional<size_t> late;  // this rank; otherwise overlap was lost
    double usual = 0;            // seconds that were exposed before
    std::vector<Step> recent;    // the latest step last
  };

  explicit StepJudge(size_t ranks) : latest_(ranks, -1) {}

  // A report; what is known of the rank already is left out. Returns the latest key that was known before.
  int64_t add(size_t rank, std::span<const StepRow> rows);
  // What the group counts itself: in this step the others waited for this rank, so many seconds.
  void note_delay(int64_t key, size_t rank, double lost) { delays_[key] = {rank, lost}; }
  // The latest step that all of these ranks have reported.
  int64_t reached(std::span<const size_t> reporting) const;
  // Of a step that is not judged yet: its number on the rank that began last; 0 when nobody has reported it.
  int64_t number_of(int64_t key) const;
  // What is new in the steps that all of these ranks have reported.
  std::vector<Found> judge(std::span<const size_t> reporting);
  // Steps up to this key were judged, or left out because a rank did not come along.
  int64_t forgotten() const { return forgotten_; }

 private:
  std::optional<Step> step_of(int64_t key, std::vector<std::pair<size_t, StepRow>> rows) const;
  void judge_step(std::vector<Found>& found);  // the latest of recent_
  void forget();

  std::vector<int64_t> latest_;  // key, by rank
  std::map<int64_t, std::vector<std::pair<size_t, StepRow>>> waiting_;
  std::map<int64_t, std::pair<size_t, double>> delays_;
  int64_t forgotten_ = -1;
  std::deque<Step> recent_;
  LateRank late_;
  Exposure exposure_;
};

}  // namespace ringdp::trace
