// Descriptors that all groups of a process share, each under a key; one is closed with its last holder.
//
// Thread-safe. Holds weak references only.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "base/unique_fd.h"

namespace ringdp::transport {

class SharedFds {
 public:
  using Shared = std::shared_ptr<const UniqueFd>;

  // The descriptor that somebody holds under `key`, if it still is `valid`; else the one that `open` makes. Both run
  // under a lock. Null when open() gives none.
  Shared share(uint64_t key, const std::function<bool(int fd)>& valid, const std::function<UniqueFd()>& open);

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<const UniqueFd>> held_;
};

}  // namespace ringdp::transport
