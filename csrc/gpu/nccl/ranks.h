// Ranks that do not all share memory, each with a device of its own, around NCCL's sends and receives: how they come to
// it, the rounds that run over it (plan/link_rounds.h), and how it ends. Where a hierarchy is wished for, the ranks of each
// host share memory of their devices beside it (nccl/host_share.h); all do or none.
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

#include "gpu/arena.h"
#include "gpu/device_ranks.h"
#include "gpu/host_telling.h"
#include "gpu/nccl/card.h"
#include "gpu/nccl/communicator.h"
#include "gpu/nccl/host_share.h"
#include "plan/device_links.h"
#include "plan/link_rounds.h"

namespace ringdp::gpu {

// What such ranks need of the group they are in.
struct NcclSurroundings {
  int rank = 0, world = 1;
  int64_t window_bytes = 0;
  plan::LinkWish wish;     // whose hosts are those to share memory within
  std::string library;     // where NCCL is, when the process has not loaded it; "": by name
  void* stream = nullptr;  // of the group, on which nothing waits
  Deadline deadline = Deadline::never();
  std::function<std::vector<std::string>(const std::string&)> tell_all;  // as of Surroundings
  std::function<void(const std::function<void()>&)> with_device;         // as of NcclCommunicator::Means
  std::function<void()> still_there;                                     // the same
  std::string why_not_on_host;                              // why this rank's host cannot share, as far as it knows; or ""
  std::function<Surroundings(HostTelling&)> on_host;        // of this rank's host, while they meet
};

class NcclRanks final : public DeviceRanks {
 public:
  // Collective; the device is the thread's current one. Where NCCL cannot serve these ranks, every rank's why_not() says
  // why, alike. Throws what tell_all() and still_there() throw.
  static std::unique_ptr<NcclRanks> meet(const Functions& functions, int device, const NcclSurroundings& surroundings);
  ~NcclRanks() override;

  const std::string& why_not() const override { return why_not_; }
  std::string description() const override;

  std::string why_not(const plan::DeviceProblem& problem) const override;
  plan::DeviceChoice choose(const plan::DeviceProblem& problem) const override;
  Pieces cut(const plan::DeviceProblem& problem) const override;

  char* window() const override { return share_ ? share_->host().window() : arena_->memory(); }
  std::chrono::milliseconds grace() const override { return std::chrono::seconds(1); }  // the host knows who has called
  // What NCCL refuses makes all results void from here on, and look() says it. After give_up() no message is queued.
  std::shared_ptr<const Work> launch(const Piece& piece, const plan::DeviceChoice& choice, void* stream) override;
  void await_checked(uint32_t number, void* stream) const override;
  void poison(void* memory, int64_t bytes, void* stream) const override;

  void checked(uint32_t number) override;
  void give_up() override;
  bool given_up() const override;
  std::string look() override;  // ends NCCL's kernels once given up, on a thread of its own
  std::optional<Expired> expired() const override { return share_ ? share_->expired() : std::nullopt; }
  std::optional<Expired> waits_for(const Work&) const override { return std::nullopt; }  // NCCL does not say

  void part() override;
  bool is_alone() const override { return !share_ || share_->host().is_alone(); }

 private:
  NcclRanks(const Functions& functions, int device, const NcclSurroundings& surroundings);
  NcclCard offer(const NcclSurroundings& surroundings);
  std::string join(const NcclSurroundings& surroundings, const rd_gpu_nccl_id& id);  // what it says of it
  void meet_hosts(const NcclSurroundings& surroundings);
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
  plan::LinkWish wish_;  // without hosts when they do not share
  const ArenaLayout layout_;  // the stage is the plans' scratch, flags are the words of HostShare
  const rd_gpu_nccl_functions* nccl_ = nullptr;
  int version_ = 0, blocks_ = 1;
  std::string why_not_, why_no_hierarchy_;
  std::shared_ptr<Arena> arena_;  // with a thread that joins
  std::unique_ptr<HostShare> share_;

  std::mutex mutex_;  // guards the rest, but for what launch() does with the first: nobody launches while it parts
  std::unique_ptr<NcclCommunicator> communicator_;
  std::string refusal_;
  bool ailing_ = false, aborting_ = false;
  Deadline::Clock::time_point ailing_since_;
  std::thread ending_;
};

}  // namespace ringdp::gpu
