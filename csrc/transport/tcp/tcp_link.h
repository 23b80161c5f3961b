// A Link over one TCP connection. What the socket's buffers hold is the link's capacity.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>

#include "transport/link.h"
#include "transport/socket.h"
#include "transport/tcp/record.h"
#include "transport/tcp/send_window.h"

namespace ringdp::transport {

// A closed or reset connection throws Error(kPeerLost) with the peer as culprit; bytes that changed on their way, and other
// failures, Error(kInternal). Bytes of a checked link are right once the last byte of the try_send() that they belong to is
// there.
class TcpLink : public Link {
 public:
  struct Options {
    int sharing = 0;       // how many connections of this rank share a wire whose queues are to be kept short; 0: none, on one host
    bool checked = false;  // both ends alike: bytes travel in records (record.h)
    int rank = -1;         // the own one, for messages
  };

  // `peer_address` is for messages. Under TLS, which authenticates every byte itself, nothing is `checked`.
  TcpLink(Socket socket, int peer_rank, std::string peer_address, Options options);

  size_t try_send(const void* bytes, size_t size) override;
  size_t try_recv(void* bytes, size_t size) override;
  void add_polls(short events, std::vector<pollfd>& polls) const override {
    polls.push_back({socket_.get(), events, 0});
  }
  const char* kind() const override { return "tcp"; }

 private:
  struct Checked {
    RecordWriter out;
    RecordReader in;
    // What was read beyond a record: the next header with what follows it, so that a short message is one system call.
    std::array<std::byte, 4096> ahead;
    size_t begin = 0, end = 0;
  };
  size_t send(const void* header, size_t header_size, const void* bytes, size_t size);
  size_t receive(void* bytes, size_t size, void* ahead, size_t ahead_size);
  bool open_record();                              // false: its header is not there yet
  size_t read_record(std::byte* bytes, size_t size);  // of the open one

  // Throws unless the failed call may simply be tried again later.
  void check(int code, const char* call) const;
  [[noreturn]] void lose(const std::string& how) const;
  [[noreturn]] void refuse_damaged(const std::string& what) const;

  Socket socket_;
  int rank_, peer_rank_;
  std::string peer_address_;
  std::optional<SendWindow> window_;  // across hosts
  std::unique_ptr<Checked> checked_;
};

}  // namespace ringdp::transport
