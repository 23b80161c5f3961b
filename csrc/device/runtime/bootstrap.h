// What ranks need of their group while they set up shared memory of their devices.
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
  // Collective: the bytes of all ranks, by rank; all bring equally many.
  std::function<std::vector<std::string>(const std::string&)> all_gather;
  // Collective: hands `own` round where names say so (transport/fd_exchange.h).
  std::function<std::vector<UniqueFd>(const std::vector<std::string>& names, int own)> pass_fds;
  std::string socket;                     // on which pass_fds() hands out
  std::shared_ptr<transport::Heap> heap;  // this rank's; null in a world of one
  std::vector<std::byte*> heaps;          // all ranks', by rank, where they begin in this process
  int64_t heap_bytes = 0;                 // of each
  std::function<void()> wait_for_device;  // until nothing is under way there
};

// An all-gather among the ranks of each host, built on the global one: all ranks join each round until all hosts are
// done.
//
// For one thread. Only the ranks of the sender's host read its bytes.
class HostAllGather {
 public:
  using AllGather = std::function<std::vector<std::string>(const std::string&)>;  // collective: everybody's, by rank

  // `hosts`: first rank of each, ascending.
  HostAllGather(AllGather all_gather, const std::vector<int>& hosts, int rank, int world);

  int first() const { return first_; }      // rank of this rank's host
  int members() const { return members_; }  // of it

  // Collective on this rank's host, by member; at most kMostBytes. Throws what all_gather() throws.
  std::vector<std::string> gather(const std::string& own);
  static constexpr size_t kMostBytes = 1020;

  // Collective over all ranks, once this rank's host has told all: "rank 2: why not" of the first that has a reason.
  std::string agree(const std::string& why_not);

 private:
  const AllGather all_gather_;
  int first_ = 0, members_ = 0;
};

}  // namespace ringdp::gpu
