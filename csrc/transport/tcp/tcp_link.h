// A link over one TCP connection.
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

// One connection, whose capacity is that of the socket's buffers. A closed or reset connection throws Error(kPeerLost)
// with the peer as culprit; damaged bytes and other failures throw Error(kInternal). On a checked link, bytes are known
// to be correct once the last byte of their try_send() has arrived.
class TcpLink : public Link {
 public:
  struct Options {
    int sharing = 0;         // connections of this rank that share the network, for SendWindow; 0: on one host
    bool checked = false;    // bytes travel in records (record.h); the same at both ends
    int rank = -1;           // this rank, for messages
    size_t most_unsent = 0;  // bytes that are kept back once so many wait to be sent; 0: what the buffer holds
  };

  // `peer_address` is for messages. Not `checked` under TLS, which authenticates every byte itself.
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
    // Bytes read beyond a record: reading the next header ahead makes a short message one system call.
    std::array<std::byte, 4096> ahead;
    size_t begin = 0, end = 0;
  };
  size_t send(const void* header, size_t header_size, const void* bytes, size_t size);
  size_t receive(void* bytes, size_t size, void* ahead, size_t ahead_size);
  bool open_record();  // false: its header has not arrived
  size_t read_record(std::byte* bytes, size_t size);

  // Throws unless the failed call can be repeated later.
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
