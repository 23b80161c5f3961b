// The ranks of one host around memory on their devices: how they come to share it, what runs over it, and how it ends.
//
// Made once per group, by all its ranks. meet(), launch() and part() are called by one thread at a time; give_up(), and
// looking, by any.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/arena.h"
#include "gpu/host_pages.h"
#include "gpu/launch.h"
#include "gpu/pieces.h"
#include "gpu/placement.h"
#include "plan/device_select.h"

namespace ringdp::gpu {

// What ranks need of the group they are in.
struct Surroundings {
  int rank = 0, world = 1;
  int64_t window_bytes = 0;
  // Collective: everybody's bytes, by rank; all bring equally many.
  std::function<std::vector<std::string>(const std::string&)> tell_all;
  // Collective: hands `own` round where names say so (transport/fd_exchange.h).
  std::function<std::vector<UniqueFd>(const std::vector<std::string>& names, int own)> pass_fds;
  std::string socket;                     // on which pass_fds() hands out
  std::shared_ptr<transport::Heap> heap;  // this rank's; null in a world of one
  std::vector<std::byte*> heaps;          // everybody's, by rank, where they begin in this process
  int64_t heap_bytes = 0;                 // of each
};

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
  std::string why_no_step() const;          // the same of the fused step
  Pieces cut_step(int64_t count) const;

  // Bytes of this rank's window.
  char* window() const { return arena_->memory(); }
  const Signals& signals() const { return arena_->signals(); }
  bool on_streams() const { return placement_.executor == RD_GPU_STREAM; }

  // One piece, in the order of the stream. Error(kInternal) when the device takes it no more.
  struct Piece {
    plan::DeviceProblem problem;  // whole packs
    int64_t input_at = 0, output_at = 0;
    double divisor = 0;
    uint64_t deadline_ns = 0;
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

 private:
  Neighbourhood(const Functions& functions, int device, const Surroundings& surroundings);
  bool try_sharing(int sharing, const Surroundings& surroundings);  // false: another way may do
  Card offer(int sharing, const Surroundings& surroundings, UniqueFd* fd);
  std::string map_all(const std::vector<Card>& cards, std::vector<UniqueFd> fds, const Surroundings& surroundings);
  void load_kernels() const;
  static HostPage* page_of(int rank, const Card& card, const Surroundings& surroundings);
  void map(int rank, const Card& card, int fd);
  void settle(const std::vector<uint32_t>& reached, const std::string& first_failure);
  void take_down(const Surroundings& surroundings);
  void drop_own();
  void unmap();
  bool has_pages() const { return on_streams() && page_ != nullptr; }  // on which streams wait
  uint32_t* abort_on_device() const;
  Addresses addresses() const;
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
  std::vector<char*> memory_;  // by rank, null where none is reached
  uint64_t launches_ = 0;
};

}  // namespace ringdp::gpu
