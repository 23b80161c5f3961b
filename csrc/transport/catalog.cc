#include "transport/catalog.h"

namespace ringdp::transport {
namespace {

// Empty when nothing is in the way of shared memory.
std::string obstacle(const SameHost& host, const Probe& probe) {
  if (!host.same) return host.why;
  if (probe.outcome == Probe::Outcome::kNotTried) return "memory was not probed";
  return probe.outcome == Probe::Outcome::kFailed ? probe.failure : "";
}

}  // namespace

Choice choose(TransportChoice wanted, const HostIdentity& a, const HostIdentity& b, const Probe& probe) {
  if (wanted == TransportChoice::kTcp) return {Via::kTcp, "tcp: asked for with transport=tcp"};
  const SameHost host = same_host(a, b);
  const std::string in_the_way = obstacle(host, probe);
  if (in_the_way.empty()) return {Via::kShm, "shm: " + host.why + ", mapping probed"};
  if (wanted == TransportChoice::kShm) return {Via::kImpossible, in_the_way};
  return {Via::kTcp, "tcp: " + in_the_way};
}

}  // namespace ringdp::transport
