#include "transport/socket.h"

#include <sys/socket.h>

namespace ringdp::transport {

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

}  // namespace ringdp::transport
