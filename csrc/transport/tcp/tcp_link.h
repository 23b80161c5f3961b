// Links over TCP, with one connection or several.
#pragma once
#include <algorithm>
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
    int sharing = 0;       // connections of this rank that share the network, for SendWindow; 0: on one host
    bool checked = false;  // bytes travel in records (record.h); the same at both ends
    int rank = -1;         // this rank, for messages
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

// Distributes bytes over several links, its streams, in stripes of a fixed length and without headers: both sides use
// the streams in the same order. A broken stream breaks the link when its turn comes. A stripe must fit into a stream's
// send buffer, or only one stream at a time would be busy; the smallest buffer of send_window.h holds more than one.
constexpr size_t kStripeBytes = 64 << 10;

class StripedLink : public Link {
 public:
  explicit StripedLink(std::vector<std::unique_ptr<Link>> streams);  // at least one

  size_t try_send(const void* bytes, size_t size) override;
  size_t try_recv(void* bytes, size_t size) override;
  // Only the stream whose turn it is: no other can move before it.
  void add_polls(short events, std::vector<pollfd>& polls) const override;
  const char* kind() const override { return streams_.front()->kind(); }

 private:
  struct Turn {
    size_t stream = 0;
    size_t done = 0;  // bytes of the current stripe
  };
  size_t left(const Turn& turn, size_t wanted) const { return std::min(kStripeBytes - turn.done, wanted); }
  void count(Turn& turn, size_t bytes) const;

  const std::vector<std::unique_ptr<Link>> streams_;
  Turn out_, in_;
};

}  // namespace ringdp::transport
