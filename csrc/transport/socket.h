// Connected, non-blocking stream sockets between two ranks, in plain text or under TLS; and whole messages over them.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "transport/tcp/tls.h"

namespace ringdp::transport {

// A borrowed socket, for the code that reads and writes it. Any thread. Results are those of sendmsg(2) and recvmsg(2)
// that neither wait nor raise a signal; with errno EPROTO TLS has failed, and failure() says why.
class SocketView {
 public:
  SocketView(int fd, Tls* tls = nullptr) : fd_(fd), tls_(tls) {}  // a descriptor alone: in plain text

  int fd() const { return fd_; }
  // Under TLS only the first part moves, and what was not sent must be offered again, unchanged.
  ssize_t send(iovec* parts, size_t count) const;
  ssize_t recv(iovec* parts, size_t count) const;
  ssize_t send(const void* bytes, size_t size) const;
  ssize_t recv(void* bytes, size_t size) const;
  // Best effort: what cannot be sent now is dropped.
  void post(const void* bytes, size_t size) const;

  bool handshake() const { return tls_ == nullptr || tls_->handshake(); }        // Tls::handshake()
  bool has_buffered() const { return tls_ != nullptr && tls_->has_buffered(); }  // bytes that poll(2) does not report
  std::string failure() const { return tls_ == nullptr ? "" : tls_->failure(); }

 private:
  int fd_;
  Tls* tls_;
};

class Socket {
 public:
  Socket() = default;
  Socket(UniqueFd fd, std::unique_ptr<Tls> tls = nullptr) : fd_(std::move(fd)), tls_(std::move(tls)) {}

  int get() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  SocketView view() const { return {fd_.get(), tls_.get()}; }  // borrowed

 private:
  UniqueFd fd_;
  std::unique_ptr<Tls> tls_;
};

// The following functions wait with poll(2). They are for the bootstrap only: collectives use Link, which does not
// wait.

// How long to wait, and what to do meanwhile.
struct WaitPolicy {
  Deadline deadline;
  // Called about every 250 ms without progress, and at the deadline; throws to end the wait.
  std::function<void()> on_idle;
};

// Returns when poll(2) reports one of `events` or a hang-up. Error(kTimeout) at the deadline, unless on_idle throws a
// more specific error.
void wait_for(int fd, short events, const WaitPolicy& policy);

// Pauses between two attempts, but not past the deadline.
void pause_for(int pause_ms, const WaitPolicy& policy);

// All bytes or nothing: false when the other side closed or reset the connection, or when TLS failed.
bool send_all(SocketView socket, const void* bytes, size_t size, const WaitPolicy& policy);
bool recv_all(SocketView socket, void* bytes, size_t size, const WaitPolicy& policy);

}  // namespace ringdp::transport
