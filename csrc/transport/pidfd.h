// A descriptor of another process, readable once that process has ended; shared by all groups of this process.
#pragma once
#include <sys/types.h>

#include <memory>

#include "base/unique_fd.h"

namespace ringdp::transport {

// Null when there is no such process, or the kernel has no pidfd_open.
std::shared_ptr<const UniqueFd> open_pidfd(pid_t pid);

bool has_ended(const UniqueFd& pidfd);

// Whether there is a process of that pid, were it another user's, or one that has ended and was not waited for.
bool exists(pid_t pid);

}  // namespace ringdp::transport
