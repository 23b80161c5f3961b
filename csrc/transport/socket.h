// A connected, non-blocking stream socket between two ranks, in plain or under TLS.
#pragma once
#include <sys/uio.h>

#include <memory>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "transport/tcp/tls.h"

namespace ringdp::transport {

// A socket that somebody else owns, as what reads and writes it sees it. Any thread. Results are those of sendmsg(2) and
// recvmsg(2) that neither wait nor raise a signal; errno EPROTO: TLS failed, and failure() says why.
class SocketView {
 public:
  SocketView(int fd, Tls* tls = nullptr) : fd_(fd), tls_(tls) {}  // a descriptor by itself is one in plain

  int fd() const { return fd_; }
  // Under TLS only the first part moves, and what did not leave must be offered again, unchanged.
  ssize_t send(iovec* parts, size_t count) const;
  ssize_t recv(iovec* parts, size_t count) const;
  ssize_t send(const void* bytes, size_t size) const;
  ssize_t recv(void* bytes, size_t size) const;
  // Best effort, for what nobody offers again.
  void post(const void* bytes, size_t size) const;

  bool shake() const { return tls_ == nullptr || tls_->shake(); }  // Tls::shake()
  bool is_ahead() const { return tls_ != nullptr && tls_->is_ahead(); }  // poll(2) does not tell of all that has come
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

}  // namespace ringdp::transport
