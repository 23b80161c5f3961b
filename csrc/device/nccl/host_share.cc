#include "device/nccl/host_share.h"

#include <chrono>

namespace ringdp::gpu {
namespace {

constexpr uint64_t kPatienceNs = std::chrono::nanoseconds(std::chrono::seconds(2)).count();  // beyond grace()

}  // namespace

HostShare::HostShare(const Functions& functions, std::unique_ptr<PeerMemory> host, int first, char* words)
    : functions_(functions), host_(std::move(host)), first_(first), words_(words) {}

std::shared_ptr<const Work> HostShare::barrier(bool last, uint64_t deadline_ns, void* stream) const {
  return host_->launch_barrier(deadline_ns + (last ? kPatienceNs : 0), stream, /*ends_all=*/true);
}

// Words are never cleared: an abort is final.
void HostShare::write_own_word(void* stream) const { host_->poison(own_word(), kWordBytes, stream); }

void HostShare::check_word(int peer, void* stream) const {
  const auto* const received = reinterpret_cast<const uint32_t*>(word(peer));
  require(functions_, functions_.poison(host_->abort_on_device(), sizeof(uint32_t), received, stream));
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
