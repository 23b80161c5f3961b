// One group's collectives on one device that run there: their stream, their order, and what of them is under way.
//
// A call goes on the stream in the order in which the group numbers it, so that all ranks' devices run the same one.
// Any thread; the one that queues a call holds order().
#pragma once
#include <atomic>
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
struct UnderWay {
  std::string what;  // "all_reduce(SUM, float32 x 4) on devices #3"
  Deadline deadline;
  Deadline::Clock::time_point since;
  std::shared_ptr<c10::Event> done;
  std::vector<std::shared_ptr<const gpu::Work>> launches;
};

// A call that graphs may run again and again for as long as the group lives.
struct Captured {
  std::string what;
  uint64_t first_launch, last_launch;         // by their numbers
  std::chrono::milliseconds timeout;          // of every wait
  std::shared_ptr<gpu::DeviceMemory> memory;  // of the segment in which it runs; or null
};

class DeviceQueue {
 public:
  DeviceQueue(std::shared_ptr<StreamPool> pool, std::shared_ptr<comm::Group> group,
              std::unique_ptr<gpu::DeviceRanks> ranks);

  const std::shared_ptr<StreamPool>& pool() const { return pool_; }
  const c10::Stream& stream() const { return stream_; }
  // Under order(): another one, which joins captures of callers' streams; what is not captured goes on meanwhile.
  const c10::Stream& captures();
  gpu::DeviceRanks& ranks() const { return *ranks_; }

  gpu::Segments* segments() const;  // null where there is no memory to share
  // Whether it lies in a segment, which ends after the device has passed it: torch's allocator knows nothing of it.
  bool shares(const at::Tensor& tensor) const;
  // Where a tensor lies in memory that devices share, when the problem can run there; else in none.
  gpu::SegmentRef segment_of(const at::Tensor& tensor, const plan::Problem& problem) const;

  std::mutex& order() { return order_; }         // from a call's number to its end on the stream
  uint32_t next_number() { return ++numbers_; }  // under order(): of calls on this device, from 1

  // While a call is being queued, before it is watched: a device that takes no more may hold its caller.
  class Queueing {
   public:
    explicit Queueing(DeviceQueue& queue) : queue_(queue) { ++queue_.queueing_; }
    ~Queueing() { --queue_.queueing_; }
    Queueing(const Queueing&) = delete;
    Queueing& operator=(const Queueing&) = delete;

   private:
    DeviceQueue& queue_;
  };

  void watch(UnderWay call);
  void keep(Captured call);

  // Any thread, the watchdog every few milliseconds: fails the group when a call's time is over, and ends what is under
  // way when the group has failed. False when there is nothing to look after any more.
  bool look();
  // The group was left: look() is false as soon as what is under way has ended.
  void leave();
  // Then: unmaps the peers' memory. Waits for the device. A queue with captured calls keeps it for good, and lets no
  // replay begin any more.
  void teardown();
  bool is_alone() const { return has_stayed_ || ranks_->is_alone(); }  // they have unmapped this rank's

 private:
  void look_at_group();
  void look_at_failure();
  void look_at_record();
  void look_at_deadlines();
  void look_at_stopped_peers();
  Error timed_out(const UnderWay& call) const;
  Error timed_out(const gpu::Expired& record) const;
  void let_go();  // of calls that are over; asks the device

  const std::shared_ptr<StreamPool> pool_;
  const std::shared_ptr<comm::Group> group_;
  const std::unique_ptr<gpu::DeviceRanks> ranks_;
  const c10::Stream stream_;

  std::mutex order_;  // guards the next two
  uint32_t numbers_ = 0;
  std::optional<c10::Stream> captures_;

  mutable std::mutex mutex_;  // guards the next three
  std::list<UnderWay> under_way_;
  std::vector<Captured> captured_;
  bool left_ = false, reported_late_ = false;

  std::atomic<int> queueing_{0};
  bool has_stayed_ = false;  // of the thread that tears down
};

}  // namespace ringdp::backend
