// Ranks as threads; what one tells, all get.
#pragma once
#include <barrier>
#include <functional>
#include <string>
#include <vector>

namespace ringdp::gpu::testing {

class RoundTable {
 public:
  explicit RoundTable(int world) : meets_(world), said_(static_cast<size_t>(world)) {}

  // Collective: everybody's, by rank. `between`: called by rank 0 once all have told.
  std::vector<std::string> tell_all(int rank, const std::string& own, const std::function<void()>& between = [] {}) {
    said_[static_cast<size_t>(rank)] = own;
    meets_.arrive_and_wait();
    if (rank == 0) between();
    const std::vector<std::string> all = said_;
    meets_.arrive_and_wait();
    return all;
  }

 private:
  std::barrier<> meets_;
  std::vector<std::string> said_;
};

}  // namespace ringdp::gpu::testing
