#include "device/nccl/host_share.h"

#include <chrono>

namespace ringdp::gpu {
namespace {

constexpr uint64_t kPatienceNs = std::chrono::nanoseconds(std::chrono::seconds(2)).count();  // beyond grace()

}  // namespace

HostShare::HostShare(const Functions& functions, std::unique_ptr<PeerMemory> host, int first, int world, char* words)
    : functions_(functions), host_(std::move(host)), first_(first), world_(world), words_(words) {}

Launched HostShare::barrier(bool last, uint64_t deadline_ns, void* stream) const {
  return host_->launch_barrier(deadline_ns + (last ? kPatienceNs : 0), stream, /*ends_all=*/true);
}

void HostShare::pass_abort_on(void* stream) const {
  require(functions_, functions_.pass_abort_on(host_->abort_on_device(), own_word(), word(0), world_, stream));
}

// Every piece launches exactly two barriers on this memory, and nothing else.
std::optional<Expired> HostShare::expired() const {
  std::optional<Expired> record = host_->expired();
  if (!record) return std::nullopt;
  record->rank += first_;
  record->peer += first_;
  record->launch += record->launch % 2;
  return record;
}

}  // namespace ringdp::gpu
