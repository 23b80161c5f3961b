// What a rank needs from its group while it sets up shared device memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "transport/heap.h"

namespace ringdp::gpu {

struct BootstrapContext {
  int rank = 0, world = 1;
  int64_t window_bytes = 0;
  int most_blocks = 0;  // of a launch; 0: by device
  // Collective: the bytes of all ranks, by rank; all pass the same number of bytes.
  std::function<std::vector<std::string>(const std::string&)> all_gather;
  // Collective: passes `own` to all ranks when names[rank] is not empty (transport/fd_exchange.h).
  std::function<std::vector<UniqueFd>(const std::vector<std::string>& names, int own)> pass_fds;
  std::string socket;                     // of pass_fds()
  std::shared_ptr<transport::Heap> heap;  // this rank's; null in a world of one
  std::vector<std::byte*> heaps;          // by rank, their addresses in this process, while `mappings` lives
  int64_t heap_bytes = 0;                 // of each heap
  std::shared_ptr<const void> mappings;
  std::function<void()> wait_for_device;  // until it is idle
};

// An all-gather among the ranks of each host, built on the global one: all ranks take part in each round until all
// hosts have finished.
//
// Not thread-safe.
class HostAllGather {
 public:
  using AllGather =
      std::function<std::vector<std::string>(const std::string&)>;  // collective: the bytes of all ranks, by rank

  // `hosts`: first rank of each, ascending.
  HostAllGather(AllGather all_gather, const std::vector<int>& hosts, int rank, int world);

  int first() const { return first_; }      // rank of this host
  int members() const { return members_; }  // of this host

  // Collective on this host; the result is by member. At most kMostBytes. Throws what all_gather() throws.
  std::vector<std::string> gather(const std::string& own);
  static constexpr size_t kMostBytes = 1020;

  // Collective over all ranks, after the last gather(): "rank 2: why not" of the first rank that has a reason, or "".
  std::string agree(const std::string& why_not);

 private:
  const AllGather all_gather_;
  int first_ = 0, members_ = 0;
};

}  // namespace ringdp::gpu
