// A Link over one TCP connection. What the socket's buffers hold is the link's capacity.
#pragma once
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "transport/link.h"
#include "transport/tcp/send_window.h"

namespace ringdp::transport {

// A closed or reset connection throws Error(kPeerLost) with the peer as culprit; other failures Error(kInternal).
class TcpLink : public Link {
 public:
  // `socket`: connected, non-blocking. `peer_address` is for messages. `sharing`: how many connections of this
  // rank share a wire whose queues are to be kept short; 0: there is none, on one host.
  TcpLink(UniqueFd socket, int peer_rank, std::string peer_address, int sharing = 0);

  size_t try_send(const void* bytes, size_t size) override;
  size_t try_recv(void* bytes, size_t size) override;
  void add_polls(short events, std::vector<pollfd>& polls) const override {
    polls.push_back({socket_.get(), events, 0});
  }
  const char* kind() const override { return "tcp"; }

 private:
  // Throws unless the failed call may simply be tried again later.
  void check(int code, const char* call) const;
  [[noreturn]] void lose(const std::string& how) const;

  UniqueFd socket_;
  int peer_rank_;
  std::string peer_address_;
  std::optional<SendWindow> window_;  // across hosts
};

}  // namespace ringdp::transport
