// TCP sockets as ringdp uses them: listening on one address, connecting with patience, and their options.
//
// All are non-blocking and close-on-exec.
#pragma once
#include <cstdint>

#include "base/unique_fd.h"
#include "transport/socket_io.h"
#include "transport/tcp/address.h"

namespace ringdp::transport {

// Bound to that address only, on a port of the kernel's choice. Error(kInternal) names the address.
UniqueFd listen_on(SocketAddress address);

// Tries again while refused or unreachable, until patience ends (its error is thrown). IPv4 and IPv6.
UniqueFd connect_tcp(const SocketAddress& address, const Patience& patience);

// No delay for small messages; a large send buffer, where the kernel grants one; a sign of life while nothing moves.
void tune_for_bulk(int fd);

// No delay; a peer that acknowledges nothing for `unreachable_ms`, busy or idle, breaks the connection, within the second
// that TCP may need to find that the network is back.
// Not for bulk sockets: a rank that merely reads late must not be taken for an unreachable one.
void tune_for_control(int fd, int64_t unreachable_ms);

}  // namespace ringdp::transport
