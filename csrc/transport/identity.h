// Which host a rank runs on, and so which transport a pair of ranks uses.
//
// The facts come from the kernel, never from environment variables: two containers may share a host name, and one host
// may have many. Ranks exchange them through the store, as one line of text.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "base/settings.h"

namespace ringdp::transport {

struct HostIdentity {
  std::string host;                // for messages only
  std::string boot_id;             // /proc/sys/kernel/random/boot_id: one running kernel
  uint64_t network_namespace = 0;  // inode; abstract unix sockets do not cross it
  uint64_t pid_namespace = 0;      // inode; pids have no meaning across it
  uint64_t user_namespace = 0;     // inode; uids have no meaning across it; 0 where the kernel has none
  uint64_t time_namespace = 0;     // inode; start times have no meaning across it; 0 where the kernel has none
  uint64_t uid = 0;
  uint64_t pid = 0;
  uint64_t start_time = 0;  // see start_time_of() in process_fds.h; 0: not known
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

// Whether the two can pass file descriptors and map the same memory. Compares fields, so it is an equivalence relation.
SameHost same_host(const HostIdentity& a, const HostIdentity& b);

// Whether pids and start times mean the same to both, as far as namespaces tell.
bool share_pids(const HostIdentity& a, const HostIdentity& b);

// Whether the process of `peer` should be here, by share_pids(), and is not. It has ended, or it runs on another
// machine: those that were restored from one snapshot have the same boot id and namespaces.
bool is_absent(const HostIdentity& peer, const HostIdentity& self);

// Whether two ranks could map each other's memory.
struct Probe {
  enum class Outcome { kNotTried, kWorked, kFailed };
  Outcome outcome = Outcome::kNotTried;
  std::string failure;  // "rank 2: memfd_create: ..."
};

enum class Via { kShm, kTcp, kImpossible };

struct PairTransport {
  Via via = Via::kTcp;
  std::string why;  // "shm: same boot id, ..., mapping probed", "tcp: network namespaces differ"
};

// A pure function, so both sides of a pair come to the same choice. kImpossible only when shared memory was asked for
// and is impossible; `why` then gives the reason.
PairTransport choose_transport(TransportChoice wanted, const HostIdentity& a, const HostIdentity& b,
                               const Probe& probe);

}  // namespace ringdp::transport
