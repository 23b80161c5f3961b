// How errors name a peer.
#pragma once
#include <string>

#include "base/error.h"
#include "transport/identity.h"

namespace ringdp::comm {

// "pid 77 on host a".
std::string process_of(const transport::HostIdentity& identity);

// "rank 1 (pid 77 on a)"; "rank 1 (rank 3 of the job, pid 77 on a at 10.0.0.2)" where `member`, its rank in the job, is
// another number, and with an address.
std::string name_of_peer(int rank, int member, const transport::HostIdentity& process, const std::string& address = "");

// `error` with `name` in place of the first "rank 1" that means rank `rank`; as it is where that one is named already.
Error with_name(const Error& error, int rank, const std::string& name);

}  // namespace ringdp::comm
