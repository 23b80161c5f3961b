// TCP sockets: listening, connecting, and options. All are non-blocking and close-on-exec.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/unique_fd.h"
#include "transport/socket.h"
#include "transport/tcp/address.h"

namespace ringdp::transport {

// Listens on that address only, on a port that the kernel chooses. Error(kInternal) names the address.
UniqueFd listen_on(SocketAddress address);

// A socket with which to connect to that address, tuned for bulk.
UniqueFd open_tcp(const SocketAddress& address);

// No delay for small messages, a large send buffer where the kernel grants one, and keepalive probes.
void tune_for_bulk(int fd);

// No delay; and the connection breaks when the peer has acknowledged nothing for `unreachable_ms`, busy or idle, plus
// the second that TCP may need to notice that the network is back. Not for bulk sockets, where a peer that reads late
// would pass for unreachable.
void tune_for_control(int fd, int64_t unreachable_ms);

// For how many milliseconds the peer's host has acknowledged nothing, while it has something to acknowledge; 0: it has
// nothing, or `fd` is no TCP socket. Heartbeats on a control socket make that the silence of its network.
int64_t silent_for_ms(int fd);

// The kernel tunes a send buffer up to net.ipv4.tcp_wmem unless a size is set, which it silently caps at
// net.core.wmem_max: with Linux's defaults a twentieth of tcp_wmem. This is the largest size that pin_send_buffer() can
// set.
int largest_send_buffer();

// Sets SO_SNDBUF, to which the kernel adds the same amount for bookkeeping. Does nothing where the size would be
// capped, or `fd` is not a socket.
void pin_send_buffer(int fd, int bytes);

// Undoes pin_send_buffer(); before Linux 5.16, where that is impossible, sets the largest size.
void leave_send_buffer_to_kernel(int fd);

// The socket takes no more, and poll(2) does not report it as writable, while so many bytes wait to be sent; what is on
// its way is not limited. Best effort.
void limit_unsent(int fd, size_t bytes);

}  // namespace ringdp::transport
