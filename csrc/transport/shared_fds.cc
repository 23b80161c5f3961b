#include "transport/shared_fds.h"

#include <iterator>
#include <utility>

namespace ringdp::transport {

SharedFds::Shared SharedFds::share(uint64_t key, const std::function<bool(int fd)>& valid,
                                   const std::function<UniqueFd()>& open) {
  const std::lock_guard lock(mutex_);
  if (const auto found = held_.find(key); found != held_.end()) {
    if (Shared held = found->second.lock(); held && valid(held->get())) return held;
  }
  UniqueFd fd = open();
  if (!fd) return nullptr;
  for (auto at = held_.begin(); at != held_.end();) at = at->second.expired() ? held_.erase(at) : std::next(at);
  auto fresh = std::make_shared<const UniqueFd>(std::move(fd));
  held_[key] = fresh;
  return fresh;
}

}  // namespace ringdp::transport
