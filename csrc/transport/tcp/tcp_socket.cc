#include "transport/tcp/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "base/bytes.h"
#include "base/error.h"

namespace ringdp::transport {
namespace {

constexpr int kBufferBytes = 4 << 20;

constexpr int kKeepAliveSeconds = 45, kMostKeepAlives = 127;

constexpr int kTcpRtoMaxMs = 44;         // TCP_RTO_MAX_MS, which headers before Linux 6.15 do not have
constexpr int kMostBetweenTries = 1000;  // ms; the least that the option accepts

bool set_option(int fd, int level, int option, int value) {
  return ::setsockopt(fd, level, option, &value, sizeof value) == 0;
}

void require_option(int fd, int option, int value, const char* name) {
  if (!set_option(fd, IPPROTO_TCP, option, value)) throw_errno(std::string("cannot set ") + name);
}

constexpr int kBufLock = 72;  // SO_BUF_LOCK, which older headers lack

}  // namespace

UniqueFd open_tcp(const SocketAddress& address) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) throw_errno("cannot make a TCP socket for " + address.text());
  tune_for_bulk(fd.get());
  return fd;
}

UniqueFd listen_on(SocketAddress address) {
  address.set_port(0);
  UniqueFd fd = open_tcp(address);  // accepted sockets inherit its options
  if (::bind(fd.get(), address.raw(), address.size) != 0) throw_errno("cannot bind to " + address.host());
  if (::listen(fd.get(), SOMAXCONN) != 0) throw_errno("cannot listen on " + address.host());
  return fd;
}

// Keepalive is for firewalls that forget silent connections. Whether a peer is unreachable is decided on the control
// socket.
void tune_for_bulk(int fd) {
  require_option(fd, TCP_NODELAY, 1, "TCP_NODELAY");
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveSeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveSeconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kMostKeepAlives);
  // The kernel sizes the receive buffer itself, and larger than it grants on request.
  pin_send_buffer(fd, kBufferBytes);
}

// By default TCP doubles the time between two retransmissions, so one that fails after a third of `unreachable_ms` may
// be the last. Best effort: the first option keeps six retransmissions close together, the second one all.
void tune_for_control(int fd, int64_t unreachable_ms) {
  require_option(fd, TCP_NODELAY, 1, "TCP_NODELAY");
  set_option(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);
  set_option(fd, IPPROTO_TCP, kTcpRtoMaxMs, kMostBetweenTries);
  require_option(fd, TCP_USER_TIMEOUT, static_cast<int>(unreachable_ms) + kMostBetweenTries, "TCP_USER_TIMEOUT");
  // Keepalive counts whole seconds: one idle, then one probe per second until the time is up.
  const int64_t probes = std::clamp<int64_t>(ceil_div(unreachable_ms, 1000) - 1, 1, kMostKeepAlives);
  if (!set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1)) throw_errno("cannot set SO_KEEPALIVE");
  require_option(fd, TCP_KEEPIDLE, 1, "TCP_KEEPIDLE");
  require_option(fd, TCP_KEEPINTVL, 1, "TCP_KEEPINTVL");
  require_option(fd, TCP_KEEPCNT, static_cast<int>(probes), "TCP_KEEPCNT");
}

int64_t silent_for_ms(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_unacked == 0) return 0;
  return info.tcpi_last_ack_recv;
}

int largest_send_buffer() {
  static const int kLargest = [] {
    int bytes = 212992;  // Linux's default, where /proc does not say
    std::ifstream("/proc/sys/net/core/wmem_max") >> bytes;
    return bytes;
  }();
  return kLargest;
}

void pin_send_buffer(int fd, int bytes) {
  if (bytes <= largest_send_buffer()) ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

void leave_send_buffer_to_kernel(int fd) {
  const int unlocked = 0, most = largest_send_buffer();
  if (::setsockopt(fd, SOL_SOCKET, kBufLock, &unlocked, sizeof unlocked) == 0) return;
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &most, sizeof most);
}

void limit_unsent(int fd, size_t bytes) { set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, static_cast<int>(bytes)); }

}  // namespace ringdp::transport
