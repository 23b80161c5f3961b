// Which gradients of the running backward pass have arrived, and how often a parameter's hook fires in a static graph.
//
// Pure bookkeeping on indices, guarded by the reducer's lock.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace ringdp::reducer {

class Readiness {
 public:
  explicit Readiness(size_t parameters) : arrived_(parameters, false), firings_(parameters, 0), left_(parameters, 0) {}

  void begin();             // of a backward pass
  bool mark(size_t index);  // false when it had arrived already
  bool arrived(size_t index) const { return arrived_[index]; }
  std::vector<size_t> missing() const;
  std::vector<size_t> order() const;  // of the gradients of this pass, by when each was complete

  // Static graphs: the first pass counts, later ones count down.
  void forget_firings() { std::fill(firings_.begin(), firings_.end(), 0); }
  void count_firing(size_t index) { ++firings_[index]; }
  size_t firings(size_t index) const { return firings_[index]; }
  enum class Firing { kNotYet, kLast, kTooMany };
  Firing count_down(size_t index);

  void note_firing(size_t index) { firing_order_.push_back(index); }

 private:
  std::vector<bool> arrived_;
  std::vector<size_t> firing_order_;
  std::vector<size_t> firings_, left_;
};

}  // namespace ringdp::reducer
