// The collectives of one group that its device runs: their stream, their order, and the calls in flight.
//
// Calls are enqueued in the order of their numbers in the group, so that the devices of all ranks run the same one.
// Thread-safe; the thread that queues a call holds order().
#pragma once
#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "comm/group.h"
#include "device/runtime/device_ranks.h"
#include "device/torch/stream_pool.h"

namespace ringdp::backend {

// A call that the device may still run.
struct WatchedCall {
  std::string what;  // "all_reduce(SUM, float32 x 4) on devices #3"
  uint32_t number;
  std::chrono::milliseconds timeout;  // from its turn
  std::shared_ptr<c10::Event> done;
  std::vector<gpu::Launched> launches;
  // When its stream was first seen to have come to it. Before that it waits for nobody but this rank's own device,
  // which may have any amount of other work.
  std::optional<Deadline::Clock::time_point> turn = {};

  double seconds() const { return turn ? seconds_since(*turn) : 0; }  // since its turn
  bool is_late() const { return turn && Deadline::Clock::now() - *turn >= timeout; }
};

// A call that graphs may replay for as long as the group lives.
struct Captured {
  std::string what;
  uint64_t first_launch, last_launch;         // numbers of its launches
  std::chrono::milliseconds timeout;          // per wait
  std::shared_ptr<gpu::DeviceMemory> memory;  // of the symmetric buffer in which it runs, or null
};

// The streams of a queue: of its calls, and of copies beside their plans. The two wait for each other by events. With
// them the events of the first calls are made, all before the ranks meet: a rank that has met them may copy to pageable
// memory, which keeps another thread of its process from making any, and wait for that thread's first call.
struct QueueStreams {
  explicit QueueStreams(StreamPool& pool);
  const StreamLease calls, copies;
};

class DeviceQueue {
 public:
  DeviceQueue(std::shared_ptr<StreamPool> pool, std::shared_ptr<comm::Group> group,
              std::unique_ptr<gpu::DeviceRanks> ranks, std::unique_ptr<const QueueStreams> streams);

  const std::shared_ptr<StreamPool>& pool() const { return pool_; }
  const c10::Stream& stream() const { return streams_->calls.stream(); }
  const c10::Stream& copies() const { return streams_->copies.stream(); }
  // Under order(): one more, which joins captures of callers' streams; other calls continue on the first.
  const c10::Stream& captures();
  gpu::DeviceRanks& ranks() const { return *ranks_; }

  gpu::SymmetricBuffers* buffers() const;  // null where ranks share no memory
  // Whether it is in a symmetric buffer, which torch's allocator does not manage.
  bool shares(const at::Tensor& tensor) const;
  // The place of a tensor in a symmetric buffer, if the collective can run there; else none.
  gpu::BufferRef buffer_of(const at::Tensor& tensor, const plan::Problem& problem) const;

  std::mutex& order() { return order_; }         // from taking a call's number until it is enqueued
  uint32_t next_number() { return ++numbers_; }  // under order(); from 1

  // Held while a call is being queued, before watch(): a device whose queue is full may block the caller.
  class Queueing {
   public:
    explicit Queueing(DeviceQueue& queue) : queue_(queue) { ++queue_.queueing_; }
    ~Queueing() { --queue_.queueing_; }
    Queueing(const Queueing&) = delete;
    Queueing& operator=(const Queueing&) = delete;

   private:
    DeviceQueue& queue_;
  };

  void watch(WatchedCall call);
  void keep(Captured call);

  // Called by the watchdog every few milliseconds: fails the group when a call has passed its deadline, and aborts the
  // calls in flight when the group has failed. False when there is nothing left to watch. Any thread may call.
  bool poll();
  // The group was destroyed: poll() returns false as soon as the calls in flight have ended.
  void leave();
  // After that: unmaps the peers' memory, and waits for the device. A queue with captured calls keeps the memory for
  // good, and lets no later replay begin.
  void teardown();
  bool is_unmapped_by_peers() const { return has_stayed_ || ranks_->is_unmapped_by_peers(); }

 private:
  void check_turns();
  void check_group();
  void check_failure();
  void check_record();
  void check_deadlines();
  void check_stopped_peers();
  Error timed_out(const WatchedCall& call) const;
  Error timed_out(const gpu::Expired& record) const;
  void drop_finished(bool only_late);  // forgets calls that the device has finished

  const std::shared_ptr<StreamPool> pool_;
  const std::shared_ptr<comm::Group> group_;
  const std::unique_ptr<gpu::DeviceRanks> ranks_;
  const std::unique_ptr<const QueueStreams> streams_;

  std::mutex order_;  // guards the next two
  uint32_t numbers_ = 0;
  std::optional<StreamLease> captures_;

  mutable std::mutex mutex_;  // guards the next three
  std::list<WatchedCall> in_flight_;
  std::vector<Captured> captured_;
  bool left_ = false, reported_late_ = false;

  std::atomic<int> queueing_{0};
  bool has_stayed_ = false;  // only used by the thread that tears down
};

}  // namespace ringdp::backend
