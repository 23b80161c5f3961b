#include "transport/socket_io.h"

#include <poll.h>

#include <cerrno>

#include "base/error.h"

namespace ringdp::transport {
namespace {

constexpr int kIdleMs = 250;

bool would_block(int code) { return code == EAGAIN || code == EWOULDBLOCK; }

bool is_hang_up(int code) {
  return code == ECONNRESET || code == EPIPE || code == ETIMEDOUT || code == EHOSTUNREACH || code == EPROTO;
}

// True to go on, false when the connection is gone; other errors throw.
bool may_go_on(int fd, short events, const char* call, const Patience& patience) {
  const int code = errno;
  if (is_hang_up(code)) return false;
  if (!would_block(code) && code != EINTR) throw_errno(call, code);
  if (would_block(code)) wait_for(fd, events, patience);
  return true;
}

void report_idle(const Patience& patience) {
  if (patience.on_idle) patience.on_idle();
  if (patience.deadline.passed()) throw Error(ErrorKind::kTimeout, "the handshake did not end before its deadline");
}

}  // namespace

void wait_for(int fd, short events, const Patience& patience) {
  pollfd entry{fd, events, 0};
  while (true) {
    const int ready = ::poll(&entry, 1, patience.deadline.poll_ms(kIdleMs));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) throw_errno("poll");
    if (ready == 0) report_idle(patience);
  }
}

void pause_for(int pause_ms, const Patience& patience) {
  ::poll(nullptr, 0, patience.deadline.poll_ms(pause_ms));
  report_idle(patience);
}

bool send_all(SocketView socket, const void* bytes, size_t size, const Patience& patience) {
  const auto* at = static_cast<const std::byte*>(bytes);
  while (size > 0) {
    const ssize_t sent = socket.send(at, size);
    if (sent < 0) {
      if (!may_go_on(socket.fd(), POLLOUT, "send", patience)) return false;
      continue;
    }
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool recv_all(SocketView socket, void* bytes, size_t size, const Patience& patience) {
  auto* at = static_cast<std::byte*>(bytes);
  while (size > 0) {
    const ssize_t got = socket.recv(at, size);
    if (got == 0) return false;
    if (got < 0) {
      if (!may_go_on(socket.fd(), POLLIN, "recv", patience)) return false;
      continue;
    }
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

bool shake_all(SocketView socket, const Patience& patience) {
  while (!socket.shake()) {
    if (!may_go_on(socket.fd(), POLLIN, "the handshake of TLS", patience)) return false;
  }
  return true;
}

}  // namespace ringdp::transport
