// What errors and warnings say about a peer: its name, the state of its process, and whether it is lost.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/identity.h"

namespace ringdp::comm {

// "pid 77 on host a".
std::string process_of(const transport::HostIdentity& identity);

// "rank 1 (pid 77 on a)"; with an address, and where `member`, its global rank, differs from `rank`, its group rank:
// "rank 1 (rank 3 of the job, pid 77 on a at 10.0.0.2)".
std::string name_of_peer(int rank, int member, const transport::HostIdentity& process, const std::string& address = "");

// `error` with `name` in place of the first "rank 1" that means `rank`, unless it is named there already.
Error with_name(const Error& error, int rank, const std::string& name);

// The state of a process on this host: "running", "sleeping", "stopped by a signal (state T)", ...; "gone" when there
// is no such process.
std::string process_state(int pid);

constexpr char kDied[] = "died: its process is gone";

// A lost process. Existing groups report theirs to groups that are being created.
struct Loss {
  int member = -1;  // its global rank; in the argument of connect(), its group rank
  transport::HostIdentity process;
  std::string how;  // kDied, "closed its connection without a goodbye: ..."
};

using Losses = std::function<std::vector<Loss>()>;

}  // namespace ringdp::comm
