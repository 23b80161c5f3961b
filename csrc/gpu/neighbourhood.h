// The ranks of one host around memory on their devices: how they come to share it, what runs over it, and how it ends.
//
// Made once per group, by all its ranks. meet(), launch() and part() are called by one thread at a time; give_up(), and
// looking, by any.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/arena.h"
#include "gpu/host_pages.h"
#include "gpu/launch.h"
#include "gpu/pieces.h"
#include "gpu/placement.h"
#include "gpu/segments.h"
#include "gpu/surroundings.h"
#include "plan/device_select.h"

namespace ringdp::gpu {

class Neighbourhood {
 public:
  // Collective; the device is the thread's current one. Where memory cannot be shared, every rank's why_not() says why,
  // alike. Throws what tell_all() throws.
  static std::unique_ptr<Neighbourhood> meet(const Functions& functions, int device, const Surroundings& surroundings);
  // Frees when everybody has let go of this rank's memory, see part(); else leaves the memory to the process's end.
  ~Neighbourhood();

  const std::string& why_not() const { return why_not_; }  // empty: collectives can run here
  std::string description() const;                         // which executor, who reaches whom

  // Why this one cannot run here, or "". Depends only on what all ranks know.
  std::string why_not(const plan::DeviceProblem& problem) const;
  plan::DeviceChoice choose(const plan::DeviceProblem& problem) const;
  Pieces cut(const plan::DeviceProblem& problem) const;
  std::optional<Pieces> cut_in_segment(const plan::DeviceProblem& problem) const;
  std::string why_no_step() const;  // why_not() of the fused step
  Pieces cut_step(int64_t count) const;

  // Memory in which tensors are where collectives run; null, on all ranks, in a world of one and where not everybody reaches
  // everybody.
  Segments* segments() const { return segments_.get(); }

  // Bytes of this rank's window.
  char* window() const { return arena_->memory(); }
  const Signals& signals() const { return arena_->signals(); }
  bool on_streams() const { return placement_.executor == RD_GPU_STREAM; }

  // One piece, in the order of the stream. Error(kInternal) when the device takes it no more.
  struct Piece {
    plan::DeviceProblem problem;  // whole packs
    int64_t input_at = 0, output_at = 0;  // in the window, or behind segment.at
    double divisor = 0;
    uint64_t deadline_ns = 0;
    bool captured = false;        // into a graph: it runs when that is replayed; SPIN only
    SegmentRef segment = {};
    int64_t input_step = 0;  // bytes by which the input of a rank lies behind that of the rank before
  };
  std::shared_ptr<const Work> launch(const Piece& piece, const plan::DeviceChoice& choice, void* stream);
  // Nobody's stream goes on before everybody's has come here: a piece of nothing.
  std::shared_ptr<const Work> launch_barrier(uint64_t deadline_ns, void* stream);
  // Adam on what all ranks have in their windows, between two barriers; not where the group is over by then.
  void step(const StepFacts& facts, void* stream) const;
  void await_checked(uint32_t number, void* stream) const;  // the stream goes on once checked(number) was called
  void poison(void* memory, int64_t bytes, void* stream) const;  // of this rank's device, if the group is over by then

  void checked(uint32_t number);
  // Ends every wait of this rank's device, now and later; results that are not there by then are void.
  void give_up();
  bool given_up() const;  // here, or on streams by any rank
  // Whom this rank's device has waited for too long; or, of a launch on streams, waits for now that it has come so far.
  std::optional<Expired> expired() const;
  std::optional<Expired> waits_for(const Work& work) const;

  // Lets go of the others' memory, once nothing of this rank is under way. No launch after it.
  void part();
  bool is_alone() const;  // all others have let go of this rank's
  // Instead, when graphs with launches of this rank may be left: all memory stays to the process's end, and what is
  // replayed gives up before it touches any.
  void stay();

 private:
  Neighbourhood(const Functions& functions, int device, const Surroundings& surroundings);
  bool try_sharing(int sharing, const Surroundings& surroundings);  // false: another way may do
  Card offer(int sharing, const Surroundings& surroundings, UniqueFd* fd);
  std::string map_all(const std::vector<Card>& cards, std::vector<UniqueFd> fds, const Surroundings& surroundings);
  void load_kernels() const;
  static HostPage* page_of(int rank, const Card& card, const Surroundings& surroundings);
  void map(int rank, const Card& card, int fd);
  void map_pages();
  void settle(const std::vector<uint32_t>& reached, const std::string& first_failure, int sharing);
  void take_down(const Surroundings& surroundings);
  void drop_own();
  void unmap();
  uint32_t* abort_on_device(int rank) const;
  Addresses addresses() const;
  Addresses addresses_in(const SegmentRef& segment) const;
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
  bool stays_ = false;
};

}  // namespace ringdp::gpu
