#include "transport/socket.h"

#include <poll.h>
#include <sys/socket.h>

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
bool may_go_on(int fd, short events, const char* call, const WaitPolicy& policy) {
  const int code = errno;
  if (is_hang_up(code)) return false;
  if (!would_block(code) && code != EINTR) throw_errno(call, code);
  if (would_block(code)) wait_for(fd, events, policy);
  return true;
}

void report_idle(const WaitPolicy& policy) {
  if (policy.on_idle) policy.on_idle();
  if (policy.deadline.passed()) throw Error(ErrorKind::kTimeout, "the handshake did not end before its deadline");
}

}  // namespace

ssize_t SocketView::send(iovec* parts, size_t count) const {
  if (tls_) return tls_->send(parts->iov_base, parts->iov_len);
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  return ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t SocketView::recv(iovec* parts, size_t count) const {
  if (tls_) return tls_->recv(parts->iov_base, parts->iov_len);
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  return ::recvmsg(fd_, &message, MSG_DONTWAIT);
}

ssize_t SocketView::send(const void* bytes, size_t size) const {
  iovec part{const_cast<void*>(bytes), size};
  return send(&part, 1);
}

ssize_t SocketView::recv(void* bytes, size_t size) const {
  iovec part{bytes, size};
  return recv(&part, 1);
}

void SocketView::post(const void* bytes, size_t size) const {
  if (tls_) return tls_->post(bytes, size);
  [[maybe_unused]] const auto sent = send(bytes, size);
}

void wait_for(int fd, short events, const WaitPolicy& policy) {
  pollfd entry{fd, events, 0};
  while (true) {
    const int ready = ::poll(&entry, 1, policy.deadline.poll_ms(kIdleMs));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) throw_errno("poll");
    if (ready == 0) report_idle(policy);
  }
}

void pause_for(int pause_ms, const WaitPolicy& policy) {
  ::poll(nullptr, 0, policy.deadline.poll_ms(pause_ms));
  report_idle(policy);
}

bool send_all(SocketView socket, const void* bytes, size_t size, const WaitPolicy& policy) {
  const auto* at = static_cast<const std::byte*>(bytes);
  while (size > 0) {
    const ssize_t sent = socket.send(at, size);
    if (sent < 0) {
      if (!may_go_on(socket.fd(), POLLOUT, "send", policy)) return false;
      continue;
    }
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool recv_all(SocketView socket, void* bytes, size_t size, const WaitPolicy& policy) {
  auto* at = static_cast<std::byte*>(bytes);
  while (size > 0) {
    const ssize_t got = socket.recv(at, size);
    if (got == 0) return false;
    if (got < 0) {
      if (!may_go_on(socket.fd(), POLLIN, "recv", policy)) return false;
      continue;
    }
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

}  // namespace ringdp::transport
