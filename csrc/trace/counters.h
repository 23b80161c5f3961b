// What a group has done so far, and which rank made the others wait. Written by the driver, read by any thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace ringdp::trace {

// A plain copy of Counters. Bytes are counted once, when they have moved.
struct Totals {
  uint64_t collectives = 0;
  uint64_t steps = 0;            // plan steps executed
  uint64_t rounds = 0;           // communication rounds: the sum over collectives of (highest round + 1)
  uint64_t wire_bytes_sent = 0;  // payload handed to links
  uint64_t wire_bytes_received = 0;
  uint64_t header_bytes_sent = 0;  // on links: fingerprints, announced lengths, frames
  uint64_t memory_bytes_read = 0;  // by folds and copies
  uint64_t memory_bytes_written = 0;
};

// The running totals of a group.
class Counters {
 public:
  void add(const Totals& t) {
    collectives_ += t.collectives;
    steps_ += t.steps;
    rounds_ += t.rounds;
    wire_bytes_sent_ += t.wire_bytes_sent;
    wire_bytes_received_ += t.wire_bytes_received;
    header_bytes_sent_ += t.header_bytes_sent;
    memory_bytes_read_ += t.memory_bytes_read;
    memory_bytes_written_ += t.memory_bytes_written;
  }
  Totals totals() const {
    return {collectives_,
            steps_,
            rounds_,
            wire_bytes_sent_,
            wire_bytes_received_,
            header_bytes_sent_,
            memory_bytes_read_,
            memory_bytes_written_};
  }

 private:
  std::atomic<uint64_t> collectives_{0}, steps_{0}, rounds_{0}, wire_bytes_sent_{0}, wire_bytes_received_{0},
      header_bytes_sent_{0}, memory_bytes_read_{0}, memory_bytes_written_{0};
};

// The time that a collective would have saved had its last rank entered together with the one before it. It is computed
// from how long each rank waited, so clocks of different ranks are not compared: the rank that waited least was last,
// and the shortest wait of the others is the delay.
struct Delay {
  int rank = -1;   // the last to enter
  int64_t ns = 0;  // 0: no rank was last, or not all ranks' waits are known
};
Delay delay_of(const std::vector<int64_t>& waits_ns);  // by rank, ns; negative: unknown

// Delays summed over a group's collectives, by rank that was last. Any thread.
class Delays {
 public:
  explicit Delays(int world) : world_(world), ns_(new std::atomic<int64_t>[world]()) {}
  void add(const Delay& delay) {
    if (delay.ns > 0) ns_[delay.rank].fetch_add(delay.ns, std::memory_order_relaxed);
  }
  std::vector<int64_t> by_rank() const { return {ns_.get(), ns_.get() + world_}; }

 private:
  const int world_;
  const std::unique_ptr<std::atomic<int64_t>[]> ns_;
};

}  // namespace ringdp::trace
