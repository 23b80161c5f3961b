// Ranks that do not all share memory, each with a device of its own, around NCCL's sends and receives: how they come to
// it, the rounds that run over it (device/plan/link_rounds.h), and how it ends. Where a hierarchy is asked for, the
// ranks of each host also share memory of their devices (nccl/host_share.h); all hosts do, or none.
//
// Sums are this library's own kernels, in rank order: NCCL moves bytes only. Made once per group, by all its ranks.
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
#include "device/plan/select.h"
#include "device/runtime/arena.h"
#include "device/runtime/bootstrap.h"
#include "device/runtime/device_ranks.h"

namespace ringdp::gpu {

// What such ranks need of the group they are in.
struct NcclBootstrapContext {
  int rank = 0, world = 1;
  int64_t window_bytes = 0;
  plan::LinkWish wish;     // whose hosts are those to share memory within
  std::string library;     // where NCCL is, when the process has not loaded it; "": by name
  void* stream = nullptr;  // of the group, on which nothing waits
  Deadline deadline = Deadline::never();
  std::function<std::vector<std::string>(const std::string&)> all_gather;  // as of BootstrapContext
  std::function<void(const std::function<void()>&)> with_device;           // as of NcclCommunicator::Means
  std::function<void()> still_there;                                       // the same
  std::string why_not_on_host;  // why this rank's host cannot share, as far as it knows; or ""
  std::function<BootstrapContext(HostAllGather&)> on_host;  // of the ranks of this rank's host, during bootstrap()
};

class NcclRanks final : public DeviceRanks {
 public:
  // Collective; the device is the thread's current one. Where NCCL cannot serve these ranks, every rank's why_not()
  // says why, alike. Throws what all_gather() and still_there() throw.
  static std::unique_ptr<NcclRanks> bootstrap(const Functions& functions, int device,
                                              const NcclBootstrapContext& context);
  ~NcclRanks() override;

  const std::string& why_not() const override { return why_not_; }
  std::string description() const override;

  std::string why_not(const plan::Problem& problem) const override;
  plan::DeviceChoice choose(const plan::Problem& problem) const override;
  Pieces cut(const plan::Problem& problem) const override;

  char* window() const override { return share_ ? share_->host().window() : arena_->memory(); }
  std::chrono::milliseconds grace() const override { return std::chrono::seconds(1); }  // the host knows who has called
  // What NCCL refuses makes all results void from here on, and look() says it. After abort() no message is queued.
  std::shared_ptr<const Work> launch(const Piece& piece, const plan::DeviceChoice& choice, void* stream) override;
  void await_checked(uint32_t number, void* stream) const override;
  void poison(void* memory, int64_t bytes, void* stream) const override;

  void checked(uint32_t number) override;
  void abort() override;
  bool aborted() const override;
  std::string look() override;  // ends NCCL's kernels once aborted, on a thread of its own
  std::optional<Expired> expired() const override { return share_ ? share_->expired() : std::nullopt; }
  std::optional<Expired> waits_for(const Work&) const override { return std::nullopt; }  // NCCL does not say

  void teardown() override;
  bool is_alone() const override { return !share_ || share_->host().is_alone(); }

 private:
  NcclRanks(const Functions& functions, int device, const NcclBootstrapContext& context);
  NcclPeerInfo offer(const NcclBootstrapContext& context);
  std::string join(const NcclBootstrapContext& context, const rd_gpu_nccl_id& id);  // what it says of it
  void bootstrap_hosts(const NcclBootstrapContext& context);
  uint32_t* abort_on_device() const;
  std::string sums() const;  // how they go, in words
  void exchange(const plan::Plan& plan, const plan::LinkRound& round, const Piece& piece, void* stream);
  void run(const plan::Plan& plan, const plan::Step& step, const Piece& piece, void* stream);
  void fold(const plan::Plan& plan, const plan::Step& step, const Piece& piece, void* stream);
  void round(const plan::Plan& plan, const plan::Step& step, const Piece& piece, void* stream);
  void recode(const plan::Plan& plan, const plan::Step& step, const Piece& piece, void* stream);
  char* address_of(const plan::Plan& plan, const plan::Ref& ref, const Piece& piece) const;

  const Functions& functions_;
  const int device_, rank_, world_;
  plan::LinkWish wish_;       // without hosts when they do not share
  const ArenaLayout layout_;  // the stage is the plans' scratch, flags are the words of HostShare
  const rd_gpu_nccl_functions* nccl_ = nullptr;
  int version_ = 0, blocks_ = 1;
  std::string why_not_, why_no_hierarchy_;
  std::shared_ptr<Arena> arena_;  // with a thread that joins
  std::unique_ptr<HostShare> share_;

  std::mutex
      mutex_;  // guards the rest, but for what launch() does with the first: no thread launches during teardown()
  std::unique_ptr<NcclCommunicator> communicator_;
  std::string refusal_;
  bool ailing_ = false, aborting_ = false;
  Deadline::Clock::time_point ailing_since_;
  std::thread ending_;
};

}  // namespace ringdp::gpu
