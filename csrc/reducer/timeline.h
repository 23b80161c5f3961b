// When things happened in a step; used to report overlap.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ringdp::reducer {

// The total length after `since` that the intervals cover; those that end before they begin are ignored.
template <class Time>
Time covered(std::vector<std::pair<Time, Time>> intervals, Time since) {
  std::sort(intervals.begin(), intervals.end());
  Time length = 0;
  for (const auto& [begin, end] : intervals) {
    if (end <= std::max(begin, since)) continue;
    length += end - std::max(begin, since);
    since = end;
  }
  return length;
}

// In steady_clock nanoseconds; 0 means "not in this step".
struct Timeline {
  struct BucketTimes {
    int64_t ready = 0;     // its last gradient arrived
    int64_t launched = 0;  // its collective was started
    int64_t done = 0;      // its collective ended
  };

  int64_t step = 0;       // number of synchronised forward passes, including this one
  int64_t forward = 0;    // the forward pass began
  int64_t backward = 0;   // the forward pass ended
  int64_t computed = 0;   // the last gradient was computed; from here on the reducer only waits
  int64_t finished = 0;   // every .grad was in place
  uint64_t sequence = 0;  // collectives of the group until then, equal on all ranks; 0 unless timelines are kept
  std::vector<BucketTimes> buckets;

  void begin_backward(int64_t now, size_t count) {
    backward = now;
    computed = finished = 0;
    buckets.assign(count, {});
  }

  int64_t end_of_compute() const { return computed != 0 ? computed : backward; }

  // With at least one collective in flight, and of that with nothing left to compute.
  int64_t communication() const { return covered(in_flight(), int64_t{0}); }
  int64_t exposed() const { return covered(in_flight(), end_of_compute()); }

  std::vector<std::pair<int64_t, int64_t>> in_flight() const {
    std::vector<std::pair<int64_t, int64_t>> intervals;
    for (const BucketTimes& bucket : buckets) {
      if (bucket.launched != 0 && bucket.done != 0) intervals.emplace_back(bucket.launched, bucket.done);
    }
    return intervals;
  }
};

}  // namespace ringdp::reducer
