// Whole frames over non-blocking sockets, for the handshake only: waits with poll(2), bounded and observed.
//
// Collectives never use these; they use Link, which does not wait.
#pragma once
#include <cstddef>
#include <functional>

#include "base/deadline.h"
#include "transport/socket.h"

namespace ringdp::transport {

// How long to wait, and what to do meanwhile.
struct Patience {
  Deadline deadline;
  std::function<void()> on_idle;  // called about every 250 ms without progress, and at the deadline; throws to give up
};

// Returns when poll(2) reports one of `events` or a hang-up. Error(kTimeout) at the deadline, unless on_idle has thrown
// something better.
void wait_for(int fd, short events, const Patience& patience);

// Between two attempts: waits, but not past the deadline.
void pause_for(int pause_ms, const Patience& patience);

// All bytes or nothing: false when the other side closed or reset the connection, or when TLS failed.
bool send_all(SocketView socket, const void* bytes, size_t size, const Patience& patience);
bool recv_all(SocketView socket, void* bytes, size_t size, const Patience& patience);

// The connecting side of a TLS handshake; nothing to do in plain. False as above.
bool shake_all(SocketView socket, const Patience& patience);

}  // namespace ringdp::transport
