// The ranks of one host around memory on their devices: how they come to share it, what runs over it, and how it ends.
//
// Made once per group, by all its ranks.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/arena.h"
#include "gpu/device_ranks.h"
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

class Neighbourhood final : public DeviceRanks {
 public:
  // Collective; the device is the thread's current one. Where memory cannot be shared, every rank's why_not() says why,
  // alike. Throws what tell_all() throws.
  static std::unique_ptr<Neighbourhood> meet(const Functions& functions, int device, const Surroundings& surroundings);
  // Frees when everybody has let go of this rank's memory, see part(); else leaves the memory to the process's end.
  ~Neighbourhood() override;

  const std::string& why_not() const override { return why_not_; }
  std::string description() const override;  // which executor, who reaches whom

  std::string why_not(const plan::DeviceProblem& problem) const override;
  plan::DeviceChoice choose(const plan::DeviceProblem& problem) const override;
  Pieces cut(const plan::DeviceProblem& problem) const override;

  char* window() const override { return arena_->memory(); }
  const Signals& signals() const { return arena_->signals(); }
  bool on_streams() const { return placement_.executor == RD_GPU_STREAM; }
  std::chrono::milliseconds grace() const override { return std::chrono::seconds(on_streams() ? 0 : 1); }  // kernels do

  std::shared_ptr<const Work> launch(const Piece& piece, const plan::DeviceChoice& choice, void* stream) override;
  void await_checked(uint32_t number, void* stream) const override;
  void poison(void* memory, int64_t bytes, void* stream) const override;

  void checked(uint32_t number) override;
  void give_up() override;
  bool given_up() const override;  // here, or on streams by any rank
  std::optional<Expired> expired() const override;
  std::optional<Expired> waits_for(const Work& work) const override;

  void part() override;
  bool is_alone() const override;

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
