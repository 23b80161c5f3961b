// Who sizes a socket's send buffer. The kernel tunes it up to net.ipv4.tcp_wmem, until a size is asked for: that is capped at
// net.core.wmem_max without an error, with Linux's own limits a twentieth of what the kernel would have gone to.
#pragma once

namespace ringdp::transport {

// The most that pin_send_buffer() gives.
int largest_send_buffer();

// SO_SNDBUF; the kernel adds as much again for its own bookkeeping. Nothing when it would be capped, or `fd` is no socket.
void pin_send_buffer(int fd, int bytes);

// Undoes it; before Linux 5.16, where nothing does, asks for all there is.
void leave_send_buffer_to_kernel(int fd);

}  // namespace ringdp::transport
