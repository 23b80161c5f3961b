#include "transport/tcp/tcp_link.h"

#include <sys/socket.h>

#include <cerrno>
#include <system_error>

#include "base/error.h"

namespace ringdp::transport {
namespace {

bool is_loss(int code) {
  return code == ECONNRESET || code == EPIPE || code == ETIMEDOUT || code == EHOSTUNREACH || code == ENETUNREACH ||
         code == ENETDOWN || code == ECONNABORTED || code == ENOTCONN;
}

}  // namespace

TcpLink::TcpLink(UniqueFd socket, int peer_rank, std::string peer_address, int sharing)
    : socket_(std::move(socket)), peer_rank_(peer_rank), peer_address_(std::move(peer_address)) {
  if (sharing > 0) window_.emplace(socket_.get(), sharing);
}

size_t TcpLink::try_send(const void* bytes, size_t size) {
  if (size == 0) return 0;
  const ssize_t sent = ::send(socket_.get(), bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    check(errno, "send");
    return 0;
  }
  if (window_) window_->sent(static_cast<size_t>(sent));
  return static_cast<size_t>(sent);
}

size_t TcpLink::try_recv(void* bytes, size_t size) {
  // recv() of no bytes returns 0, which would read as the end of the stream.
  if (size == 0) return 0;
  const ssize_t got = ::recv(socket_.get(), bytes, size, MSG_DONTWAIT);
  if (got > 0) return static_cast<size_t>(got);
  if (got == 0) lose("closed by the other side");
  check(errno, "recv");
  return 0;
}

void TcpLink::check(int code, const char* call) const {
  if (code == EAGAIN || code == EWOULDBLOCK || code == EINTR) return;
  if (is_loss(code)) lose(std::generic_category().message(code));
  throw_errno(std::string(call) + " on the link to rank " + std::to_string(peer_rank_), code);
}

void TcpLink::lose(const std::string& how) const {
  throw Error(ErrorKind::kPeerLost,
              "the TCP link to rank " + std::to_string(peer_rank_) + " at " + peer_address_ + " broke: " + how +
                  "; its process has ended or its host cannot be reached, look at that rank's own output first",
              peer_rank_);
}

}  // namespace ringdp::transport
