// The ranks of one host that share device memory: how they set it up, what they run over it, and how they tear it down.
//
// Made once per group, by all its ranks.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/plan/plan_cache.h"
#include "device/plan/select.h"
#include "device/runtime/arena.h"
#include "device/runtime/bootstrap.h"
#include "device/runtime/device_ranks.h"
#include "device/runtime/launch.h"
#include "device/runtime/links.h"
#include "device/runtime/peer_info.h"
#include "device/runtime/pieces.h"
#include "device/runtime/placement.h"
#include "device/runtime/symmetric_buffers.h"

namespace ringdp::gpu {

class PeerMemory final : public DeviceRanks {
 public:
  // Collective, on the thread's current device. Where memory cannot be shared, why_not() says why, the same on every
  // rank. Throws what all_gather() throws.
  static std::unique_ptr<PeerMemory> bootstrap(const Functions& functions, int device, const BootstrapContext& context);
  // Frees this rank's memory if all peers have unmapped it, see teardown(); else leaves it until the process ends.
  ~PeerMemory() override;

  const std::string& why_not() const override { return why_not_; }
  std::string description() const override;  // which executor, which ranks reach which, how

  std::string why_not(const plan::Problem& problem) const override;
  plan::DeviceChoice choose(const plan::Problem& problem) const override;
  Pieces cut(const plan::Problem& problem) const override;
  std::optional<Pieces> cut_in_buffer(const plan::Problem& problem) const;
  std::string why_no_step() const;        // the fused step accesses the windows of all ranks
  std::string why_no_common_end() const;  // "" when a rank, or its device, can make all ranks abort
  Pieces cut_step(int64_t count) const;

  PeerMemory* sharing() override { return this; }
  // Null, on all ranks, in a world of one and where some rank cannot access another's memory.
  SymmetricBuffers* buffers() const { return buffers_.get(); }

  char* window() const override { return arena_->memory(); }
  char* window(int rank) const { return memory_[static_cast<size_t>(rank)]; }  // at its address on this rank's device
  uint32_t* abort_on_device() const { return abort_on_device(rank_); }         // not 0: this rank has aborted
  const Signals& signals() const { return arena_->signals(); }
  bool on_streams() const { return placement_.executor == RD_GPU_STREAM; }
  std::chrono::milliseconds grace() const override {
    return std::chrono::seconds(on_streams() ? 0 : 1);
  }  // for kernels to report

  bool runs_on_own_tensors(const plan::Problem& piece, const plan::DeviceChoice& choice) const override;
  Launched launch(const Piece& piece, const plan::DeviceChoice& choice, void* stream) override;
  // A barrier of all ranks' streams. `ends_all`: a rank that has aborted skips it; a rank that has aborted, or aborts
  // in it, continues only after it has made all ranks abort; SPIN only.
  Launched launch_barrier(uint64_t deadline_ns, void* stream, bool ends_all = false);
  // Adam on the gradients in the windows of all ranks, between two barriers; skipped if the group has failed by then.
  void step(const StepFacts& facts, void* stream) const;
  void mark_turn(uint32_t number, void* stream) const override;
  uint32_t turn() const override;
  void await_release(uint32_t number, void* stream) const override;
  void poison(void* memory, int64_t bytes, void* stream) const override;
  void deliver(void* to, const void* from, int64_t bytes, void* stream) const override;

  void release(uint32_t number) override;
  void abort() override;
  bool aborted() const override;  // this rank, or with STREAM any rank
  std::optional<Expired> expired() const override;
  std::optional<Expired> waits_for(const Launched& launch) const override;

  void teardown() override;
  bool is_unmapped_by_peers() const override;
  // Instead of teardown(), when graphs with launches of this rank may remain: all memory stays until the process ends,
  // and replays abort before they touch any.
  void stay();

 private:
  PeerMemory(const Functions& functions, int device, const BootstrapContext& context);
  bool try_sharing(int sharing, const BootstrapContext& context);  // false: try another mode of sharing
  PeerInfo offer(int sharing, const BootstrapContext& context, UniqueFd* fd);
  std::string map_all(const std::vector<PeerInfo>& infos, std::vector<UniqueFd> fds, const BootstrapContext& context);
  static HostPage* page_of(int rank, const PeerInfo& info, const BootstrapContext& context);
  void map(int rank, const std::vector<PeerInfo>& infos, int fd);
  void map_pages();
  void settle(const MappingReports& reports, int sharing);
  void measure_links(const BootstrapContext& context);  // may set why_not_
  void take_down(const BootstrapContext& context);
  void drop_own();
  void unmap();
  uint32_t* abort_on_device(int rank) const;
  StageOf stage_of(const plan::Problem& whole) const;
  Addresses addresses() const;
  Addresses addresses_in(const BufferRef& buffer) const;
  Launched launch_at(const Addresses& found, const Piece& piece, const plan::DeviceChoice& choice, void* stream);
  bool has_posted(const Launched& launch, int step) const;

  const Functions& functions_;
  const int device_, rank_, world_, most_blocks_;
  const ArenaLayout layout_;
  std::string why_not_;
  Placement placement_;
  Reach reach_ = Reach::kTooFew;
  bool outlives_ranks_ = false;  // all memory is shared by descriptor
  plan::DeviceTopology topology_;
  Links links_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<OwnPage> page_;
  std::vector<HostPage*> pages_;  // by rank
  std::unique_ptr<MappedPages> mapped_pages_;
  bool pages_serve_ = false;  // this rank's device reads the abort word there, where its peers can write it
  std::string why_no_pages_;
  std::vector<char*> memory_;  // by rank; null where it is not mapped
  std::unique_ptr<SymmetricBuffers> buffers_;
  mutable plan::DevicePlanCache<plan::DevicePlan> plans_{plan::make_device_plan};
  uint64_t launches_ = 0;
  bool late_ = false;  // a copy of this rank, and then of any, does not end: what it uses stays
  bool stays_ = false, is_torn_down_ = false;
};

}  // namespace ringdp::gpu
