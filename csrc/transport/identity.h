// Which host a rank runs on, as one line of text that ranks exchange through the store.
//
// Facts from the kernel, never environment variables: two containers may share a host name, and one host may have many.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace ringdp::transport {

struct HostIdentity {
  std::string host;                // for messages only
  std::string boot_id;             // /proc/sys/kernel/random/boot_id: one running kernel
  uint64_t network_namespace = 0;  // inode; abstract unix sockets reach no further
  uint64_t pid_namespace = 0;      // inode; pids mean nothing across it
  uint64_t user_namespace = 0;     // inode; uids mean nothing across it; 0 where the kernel has none
  uint64_t uid = 0;
  uint64_t pid = 0;
};

// Error(kInternal) when /proc is not mounted.
HostIdentity local_identity();

std::string to_line(const HostIdentity& identity);

// nullopt unless `line` is exactly what to_line() writes.
std::optional<HostIdentity> identity_from_line(const std::string& line);

struct SameHost {
  bool same = false;
  std::string why;  // "same boot id, network namespace and user", "network namespaces differ"
};

// Whether the two can pass file descriptors and map the same memory. An equivalence relation: it compares fields.
SameHost same_host(const HostIdentity& a, const HostIdentity& b);

// Whether a pid of one names the same process for the other.
bool share_pids(const HostIdentity& a, const HostIdentity& b);

}  // namespace ringdp::transport
