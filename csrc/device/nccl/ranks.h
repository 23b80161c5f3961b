// Ranks that do not all share memory, each with its own device, over NCCL's sends and receives: how they join, run
// rounds of messages (device/plan/link_rounds.h), and leave. For a hierarchy the ranks of each host also share device
// memory (nccl/host_share.h), on all hosts or on none.
//
// This library's own kernels sum, in rank order: NCCL only moves bytes. Created once per group, by all its ranks.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device/nccl/communicator.h"
#include "device/nccl/host_share.h"
#include "device/plan/link_rounds.h"
#include "device/plan/plan_cache.h"
#include "device/plan/select.h"
#include "device/runtime/arena.h"
#include "device/runtime/bootstrap.h"
#include "device/runtime/device_ranks.h"

namespace ringdp::gpu {

// What a rank needs from its group.
struct NcclBootstrapContext {
  int rank = 0, world = 1;
  int64_t window_bytes = 0;
  int most_blocks = 0;               // of a launch; 0: by device
  plan::LinkSettings link_settings;  // its hosts are those whose ranks share memory
  std::string library;               // path of NCCL when the process has not loaded it; "": by name
  void* stream = nullptr;            // of the group; no work on it waits for other ranks
  Deadline deadline = Deadline::never();
  std::function<std::vector<std::string>(const std::string&)> all_gather;  // as in BootstrapContext
  WithDevice with_device;
  std::function<void()> still_there;  // as in NcclCommunicator::Means
  std::string why_not_on_host;        // why this rank's host cannot share, as far as it knows; or ""
  std::function<BootstrapContext(HostAllGather&)> on_host;  // of the ranks of this host; used during bootstrap()
};

class NcclRanks final : public DeviceRanks {
 public:
  // Collective, on the thread's current device. Where these ranks cannot use NCCL, why_not() says why, the same on
  // every rank. Throws what all_gather() and still_there() throw.
  static std::unique_ptr<NcclRanks> bootstrap(const Functions& functions, int device,
                                              const NcclBootstrapContext& context);
  ~NcclRanks() override;

  const std::string& why_not() const override { return why_not_; }
  std::string description() const override;

  std::string why_not(const plan::Problem& problem) const override;
  plan::DeviceChoice choose(const plan::Problem& problem) const override;
  Pieces cut(const plan::Problem& problem) const override;

  char* window() const override { return share_ ? share_->host().window() : arena_->memory(); }
  std::chrono::milliseconds grace() const override {
    return std::chrono::seconds(1);
  }  // for the group to learn which rank has not called
  // An error of NCCL aborts, so that all later results are NaN, and poll() returns it. After abort() no message is
  // queued.
  Launched launch(const Piece& piece, const plan::DeviceChoice& choice, void* stream) override;
  void mark_turn(uint32_t number, void* stream) const override;
  uint32_t turn() const override;
  void await_release(uint32_t number, void* stream) const override;
  void poison(void* memory, int64_t bytes, void* stream) const override;
  void deliver(void* to, const void* from, int64_t bytes, void* stream) const override;

  void release(uint32_t number) override;
  void abort() override;
  bool aborted() const override;
  std::string poll() override;  // after an abort: ends NCCL's kernels, on a thread of its own
  std::optional<Expired> expired() const override { return share_ ? share_->expired() : std::nullopt; }
  std::optional<Expired> waits_for(const Launched&) const override {
    return std::nullopt;
  }  // NCCL does not say which rank it waits for

  void teardown() override;
  bool is_unmapped_by_peers() const override { return !share_ || share_->host().is_unmapped_by_peers(); }

 private:
  NcclRanks(const Functions& functions, int device, const NcclBootstrapContext& context);
  NcclPeerInfo offer(const NcclBootstrapContext& context);
  std::string join(const NcclBootstrapContext& context, const rd_gpu_nccl_id& id);  // returns a JoinReport
  void bootstrap_hosts(const NcclBootstrapContext& context);
  uint32_t* abort_on_device() const;
  std::string sums() const;  // how sums run, for description()
  // Whether words of peers have come with the messages.
  bool exchange(const plan::Plan& plan, const plan::LinkRound& round, const Piece& piece, void* stream);
  void run(const plan::Plan& plan, const plan::Step& step, const Piece& piece, void* stream);
  void fold(const plan::Plan& plan, const plan::Step& step, const Piece& piece, void* stream);
  void round(const plan::Plan& plan, const plan::Step& step, const Piece& piece, void* stream);
  void recode(const plan::Plan& plan, const plan::Step& step, const Piece& piece, void* stream);
  char* address_of(const plan::Plan& plan, const plan::Ref& ref, const Piece& piece) const;

  struct LinkPlan {
    plan::Plan plan;
    std::vector<plan::LinkRound> rounds;
  };

  const Functions& functions_;
  const int device_, rank_, world_;
  plan::LinkSettings link_settings_;  // without hosts when their ranks do not share memory
  const ArenaLayout layout_;          // the stage is scratch of plans, the flags are the words of HostShare
  const WithDevice with_device_;
  const rd_gpu_nccl_functions* nccl_ = nullptr;
  int version_ = 0, blocks_ = 1;
  std::string why_not_, why_no_hierarchy_;
  std::shared_ptr<Arena> arena_;  // shared with the joining thread
  std::unique_ptr<HostShare> share_;
  plan::DevicePlanCache<LinkPlan> plans_;
  mutable plan::DevicePlanCache<int64_t> scratch_bytes_;  // the most that any rank's plan needs

  std::mutex mutex_;  // guards the rest; launch() uses communicator_ without it, because none runs during teardown()
  std::unique_ptr<NcclCommunicator> communicator_;
  std::string refusal_;
  bool failing_ = false, aborting_ = false;
  Deadline::Clock::time_point failing_since_;
  std::thread ending_;
};

}  // namespace ringdp::gpu
