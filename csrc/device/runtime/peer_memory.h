// The ranks of one host around memory on their devices: how they come to share it, what runs over it, and how it ends.
//
// Made once per group, by all its ranks.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/plan/select.h"
#include "device/runtime/arena.h"
#include "device/runtime/bootstrap.h"
#include "device/runtime/device_ranks.h"
#include "device/runtime/launch.h"
#include "device/runtime/pieces.h"
#include "device/runtime/placement.h"
#include "device/runtime/segments.h"

namespace ringdp::gpu {

class PeerMemory final : public DeviceRanks {
 public:
  // Collective; the device is the thread's current one. Where memory cannot be shared, every rank's why_not() says why,
  // alike. Throws what all_gather() throws.
  static std::unique_ptr<PeerMemory> bootstrap(const Functions& functions, int device, const BootstrapContext& context);
  // Frees when all ranks have unmapped this rank's memory, see teardown(); else leaves the memory to the process's end.
  ~PeerMemory() override;

  const std::string& why_not() const override { return why_not_; }
  std::string description() const override;  // which executor, which ranks reach which

  std::string why_not(const plan::Problem& problem) const override;
  plan::DeviceChoice choose(const plan::Problem& problem) const override;
  Pieces cut(const plan::Problem& problem) const override;
  std::optional<Pieces> cut_in_segment(const plan::Problem& problem) const;
  std::string why_no_step() const;        // why_not() of what reaches into everybody's windows, as the fused step does
  std::string why_no_common_end() const;  // "": a rank that aborts can make all ranks abort, on its device too
  Pieces cut_step(int64_t count) const;

  PeerMemory* sharing() override { return this; }
  // Memory in which tensors are where collectives run; null, on all ranks, in a world of one and where not everybody
  // reaches everybody.
  Segments* segments() const { return segments_.get(); }

  char* window() const override { return arena_->memory(); }
  char* window(int rank) const { return memory_[static_cast<size_t>(rank)]; }  // as this rank's device reaches it
  uint32_t* abort_on_device() const { return abort_on_device(rank_); }         // not 0: this rank has aborted
  const Signals& signals() const { return arena_->signals(); }
  bool on_streams() const { return placement_.executor == RD_GPU_STREAM; }
  std::chrono::milliseconds grace() const override { return std::chrono::seconds(on_streams() ? 0 : 1); }  // kernels do

  std::shared_ptr<const Work> launch(const Piece& piece, const plan::DeviceChoice& choice, void* stream) override;
  // A barrier of all ranks' streams: a piece of nothing. `ends_all`: a rank that has aborted by then skips it, and one
  // that has, or aborts here, goes on once it has made all ranks abort; SPIN only.
  std::shared_ptr<const Work> launch_barrier(uint64_t deadline_ns, void* stream, bool ends_all = false);
  // Adam on what all ranks have in their windows, between two barriers; not where the group is over by then.
  void step(const StepFacts& facts, void* stream) const;
  void await_checked(uint32_t number, void* stream) const override;
  void poison(void* memory, int64_t bytes, void* stream) const override;

  void checked(uint32_t number) override;
  void abort() override;
  bool aborted() const override;  // here, or on streams by any rank
  std::optional<Expired> expired() const override;
  std::optional<Expired> waits_for(const Work& work) const override;

  void teardown() override;
  bool is_alone() const override;
  // Instead, when graphs with launches of this rank may be left: all memory stays to the process's end, and what is
  // replayed aborts before it touches any.
  void stay();

 private:
  PeerMemory(const Functions& functions, int device, const BootstrapContext& context);
  bool try_sharing(int sharing, const BootstrapContext& context);  // false: another way may do
  PeerInfo offer(int sharing, const BootstrapContext& context, UniqueFd* fd);
  std::string map_all(const std::vector<PeerInfo>& infos, std::vector<UniqueFd> fds, const BootstrapContext& context);
  static HostPage* page_of(int rank, const PeerInfo& info, const BootstrapContext& context);
  void map(int rank, const PeerInfo& info, int fd);
  void map_pages();
  void settle(const std::vector<uint32_t>& reached, const std::string& first_failure, int sharing);
  void take_down(const BootstrapContext& context);
  void drop_own();
  void unmap();
  uint32_t* abort_on_device(int rank) const;
  Addresses addresses() const;
  Addresses addresses_in(const SegmentRef& segment) const;
  std::shared_ptr<const Work> launch_at(const Addresses& found, const Piece& piece, const plan::DeviceChoice& choice,
                                        void* stream);
  bool has_posted(const Work& work, int step) const;

  const Functions& functions_;
  const int device_, rank_, world_;
  const ArenaLayout layout_;
  std::string why_not_;
  Placement placement_;
  Reach reach_ = Reach::kTooFew;
  plan::DeviceTopology topology_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<OwnPage> page_;
  std::vector<HostPage*> pages_;  // by rank
  std::unique_ptr<MappedPages> mapped_pages_;
  bool pages_serve_ = false;  // this rank's device looks there for the end: where its peers, too, can write it
  std::string why_no_pages_;
  std::vector<char*> memory_;  // by rank, null where none is reached
  std::unique_ptr<Segments> segments_;
  uint64_t launches_ = 0;
  bool stays_ = false, is_torn_down_ = false;
};

}  // namespace ringdp::gpu
