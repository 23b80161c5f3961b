// Serves one listener during rendezvous: lets the expected ranks in, and no one else, whatever arrives.
//
// A socket has one second to deliver its hello, under TLS with the handshake before it; at most 64 wait at once (beyond that
// the oldest is dropped), each in a buffer of fixed size. Whoever fails is closed without an answer, but for TLS's own, and only
// counted. Single-threaded; borrows its listener.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "transport/hello.h"
#include "transport/socket.h"

namespace ringdp::transport {

class Acceptor {
 public:
  static constexpr size_t kMostWaiting = 64;
  static constexpr std::chrono::milliseconds kPatience{1000};

  struct Arrival {
    Hello hello;  // of the other side: hello.from is its rank
    Socket socket;
  };
  // A last look at the socket of a rank with a valid hello, e.g. at its credentials.
  using Admit = std::function<bool(int socket, int rank)>;

  // `expected`: the hellos that must come, one socket each. `tls`: under which they come; null: in plain.
  Acceptor(int listener, std::vector<Hello> expected, Admit admit, const TlsContext* tls = nullptr);

  // One round: waits up to `wait_ms` for something to happen, then serves it. True once all have come.
  bool serve(int wait_ms);

  std::vector<int> missing() const;  // ranks, ascending
  size_t refused() const { return refused_; }
  const std::string& why_refused() const { return why_refused_; }  // the last whose TLS failed; empty: none
  size_t waiting() const { return waiting_.size(); }
  std::vector<Arrival> take_arrivals() { return std::move(arrivals_); }

 private:
  struct Waiting {
    Socket socket;
    Deadline give_up;
    size_t received = 0;
    HelloFrame frame{};
  };
  enum class Progress { kNeedsMore, kAdmitted, kRefused };

  void accept_new();
  bool accept_one();
  void serve_waiting();
  Progress read_hello(Waiting& waiting);
  bool admit(Waiting& waiting);

  int listener_;
  const TlsContext* tls_;
  std::vector<Hello> expected_;
  Admit admit_;
  std::vector<Waiting> waiting_;  // oldest first
  std::vector<Arrival> arrivals_;
  size_t refused_ = 0;
  std::string why_refused_;
};

}  // namespace ringdp::transport
