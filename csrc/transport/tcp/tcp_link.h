// A Link over one TCP connection. What the socket's buffers hold is the link's capacity.
#pragma once
#include <string>

#include "base/unique_fd.h"
#include "transport/link.h"

namespace ringdp::transport {

// A closed or reset connection throws Error(kPeerLost) with the peer as culprit; other failures Error(kInternal).
class TcpLink : public Link {
 public:
  // `socket`: connected, non-blocking. `peer_address` is for messages.
  TcpLink(UniqueFd socket, int peer_rank, std::string peer_address);

  size_t try_send(const void* bytes, size_t size) override;
  size_t try_recv(void* bytes, size_t size) override;
  int poll_fd() const override { return socket_.get(); }
  const char* kind() const override { return "tcp"; }

 private:
  // Throws unless the failed call may simply be tried again later.
  void check(int code, const char* call) const;
  [[noreturn]] void lose(const std::string& how) const;

  UniqueFd socket_;
  int peer_rank_;
  std::string peer_address_;
};

}  // namespace ringdp::transport
