// What a group has done so far, and which rank made the others wait. Written by the driver thread, read by any.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace ringdp::trace {

// A plain copy, for reading.
struct Totals {
  uint64_t collectives = 0;
  uint64_t steps = 0;            // plan steps executed
  uint64_t rounds = 0;           // communication rounds: the sum over collectives of (highest round + 1)
  uint64_t wire_bytes_sent = 0;  // payload handed to links to other ranks
  uint64_t wire_bytes_received = 0;
  uint64_t header_bytes_sent = 0;  // on links: fingerprints, announced lengths, frames of messages
  uint64_t memory_bytes_read = 0;  // by folds and copies
  uint64_t memory_bytes_written = 0;
};

// Counted where it happens.
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

// What a collective would have gained had its last rank come with the one before it. It follows from how long each rank
// waited; clocks of different ranks are not compared: the rank that waits least came last, and the wait of the next one
// says by how much.
struct Delay {
  int rank = -1;   // the last to come
  int64_t ns = 0;  // 0: no rank was last, or not all ranks' waits are known
};
Delay delay_of(const std::vector<int64_t>& waits_ns);  // by rank; negative: unknown

// Sums over a group's collectives.
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
