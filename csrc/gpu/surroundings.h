// What ranks that share memory of their devices need of the group they are in.
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
  std::function<void()> wait_for_device;  // until nothing is under way there
};

}  // namespace ringdp::gpu
