// Protects tensors in heaps when a collective fails while other ranks still access them in one pass: this rank's
// tensors from the peers' writes, and the peers' results from later changes of this rank's tensors.
//
// A peer has stopped once it has finished the pass, has retired (Arena::retire), or is dead. One that has not stopped
// after a grace period, because it is suspended or starved, is cut off: its writes go to memory that no rank reads.
// Driver only, except retire().
#pragma once
#include <atomic>
#include <optional>
#include <vector>

#include "base/deadline.h"
#include "comm/bootstrap.h"
#include "comm/placement.h"
#include "plan/plan.h"

namespace ringdp::comm {

class HeapFence {
 public:
  explicit HeapFence(const Mesh& mesh) : mesh_(mesh) {}  // outlives the fence; may have no arena

  void begin();  // a collective starts
  // Before this rank's header is posted: peers may write into its tensor from then on, if the plan does.
  void expose(const plan::Problem& problem, const Placement& own);
  void decide(bool in_heaps);  // whether the collective accesses the tensors in the heaps
  void end();                  // it has ended

  // Any thread, when the group has failed or is left. Only the first call counts.
  void retire() const;

  // After the last barrier of a pass: whether a peer has abandoned it, and may have changed its tensors since. That
  // peer's error will arrive; if it does not, the deadline ends the collective.
  bool may_be_overwritten() const;

  // After a failure: the ranks that may still write into this rank's tensor. The first call that finds any starts the
  // grace period.
  std::vector<int> writers();
  bool in_grace_period() const { return grace_ && !grace_->passed(); }
  void cut_off() const;  // makes the tensor's memory private. Error(kInternal)

 private:
  bool has_stopped(const Peer& peer) const;

  // The part of this rank's heap into which peers write until barrier number `last_barrier` has passed.
  struct Exposure {
    int64_t offset = 0, bytes = 0;
    uint64_t last_barrier = 0;
  };

  const Mesh& mesh_;
  std::optional<Exposure> exposed_;
  std::optional<Deadline> grace_;
  bool in_heaps_ = false;
  std::atomic<uint64_t> first_barrier_{0};  // of the running collective; 0: none runs
};

}  // namespace ringdp::comm
