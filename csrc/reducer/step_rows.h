// What a watch reports of each step, made of a reducer's timelines.
#pragma once
#include <cstdint>
#include <vector>

#include "reducer/timeline.h"
#include "trace/step_judge.h"

namespace ringdp::reducer {

// A step is a pass, and ends when every .grad is in place. One thread.
class StepRows {
 public:
  struct Taken {
    std::vector<double> seconds;  // of each step
    std::vector<trace::StepRow> rows;
  };

  // Of the passes that follow those of the last call. Rows only of steps whose number `stride` divides.
  Taken take(const std::vector<Timeline>& timelines, int64_t stride) {
    Taken taken;
    for (const Timeline& t : timelines) {
      const int64_t before = finished_;
      finished_ = t.finished;
      ++number_;
      if (before == 0 || t.finished <= before) continue;
      const double took = seconds(t.finished - before);
      taken.seconds.push_back(took);
      if (number_ % stride != 0) continue;
      taken.rows.push_back({static_cast<int64_t>(t.sequence), number_, took,
                            t.forward > before ? seconds(t.forward - before) : 0.0,
                            seconds(t.end_of_compute() - t.forward), seconds(t.exposed()), seconds(t.communication())});
    }
    return taken;
  }

 private:
  static double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

  int64_t number_ = -1;
  int64_t finished_ = 0;  // the pass before, in ns; 0: there was none
};

}  // namespace ringdp::reducer
