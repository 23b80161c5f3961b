// The simulator's arenas: two slots per rank that remember who accessed each byte when.
//
// An access that no barrier orders is reported as a race whatever the schedule was. Ranks are group ranks here.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "oracle.h"

namespace ringdp::plan::testing {

// Where a rank is between barriers.
struct Barriers {
  uint64_t arrived = 0, passed = 0;
};

class SimSlot {
 public:
  SimSlot() = default;
  SimSlot(int owner, int64_t size, int world)
      : bytes(size), owner_(owner), written_(size), read_(world, std::vector<uint64_t>(size)) {}

  Bytes bytes;

  // Notes the access and returns "" or what is wrong with it.
  std::string access(int r, const std::vector<Barriers>& ranks, int64_t begin, int64_t end, bool writes) {
    for (int64_t i = begin; i < end; ++i) {
      const std::string fault = writes ? write(r, ranks, i) : read(r, ranks[r], i);
      if (!fault.empty()) return "race: rank " + std::to_string(r) + ", slot of " + std::to_string(owner_) + fault;
    }
    return "";
  }

 private:
  std::string read(int r, const Barriers& rank, int64_t i) {
    if (written_[i] == 0) return ": read before it was written";
    if (owner_ != r && rank.passed < written_[i]) return ": read before it was published";
    read_[r][i] = rank.arrived + 1;
    return "";
  }

  std::string write(int r, const std::vector<Barriers>& ranks, int64_t i) {
    if (owner_ != r) return ": written by another rank";
    for (int q = 0; q < static_cast<int>(ranks.size()); ++q) {
      if (q != r && ranks[r].passed < read_[q][i]) return ": written under a reader";
    }
    written_[i] = ranks[r].arrived + 1;
    return "";
  }

  int owner_ = 0;
  std::vector<uint64_t> written_;            // by byte: the barrier that publishes the last write
  std::vector<std::vector<uint64_t>> read_;  // by reader and byte: the barrier after its last read
};

}  // namespace ringdp::plan::testing
