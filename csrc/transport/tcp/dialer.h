// The connecting side of many TCP connections at once, during the bootstrap: together they take as many round trips as
// one. The other side is an Acceptor (hello.h).
#pragma once
#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "transport/hello.h"
#include "transport/tcp/address.h"

namespace ringdp::transport {

// Connects and exchanges hellos. What is refused, cannot be reached or is closed by the other side is tried again,
// after pauses that grow: a listener may be flooded. Never waits; single-threaded.
class Dialer {
 public:
  struct Call {
    SocketAddress to;
    Hello hello;  // of this side: hello.to is the rank that answers
  };

  // `tls`: null for plain text; it must outlive the dialer.
  Dialer(std::vector<Call> calls, const TlsContext* tls);

  // Moves what can be moved; true once all calls are answered. Error(kInternal) names an address that this host cannot
  // connect to.
  bool advance();

  // For poll(2), between two calls of advance(): what to wait for, and for how long, `most_ms` at most.
  void add_polls(std::vector<pollfd>& polls) const;
  int poll_ms(int most_ms) const;

  // The first failure of TLS: trying again will not help.
  struct Refusal {
    int rank;
    std::string why;
  };
  const std::optional<Refusal>& refusal() const { return refusal_; }

  std::vector<int> missing() const;  // ranks, ascending
  std::string obstacle() const;      // the address of the first of them, and why it has not answered; or empty
  std::vector<Arrival> take_answers() { return std::move(answers_); }

 private:
  struct Attempt {
    Call call;
    Socket socket;  // empty during a pause
    Deadline resume;
    int pause_ms;
    bool is_connected = false;
    short awaits = 0;  // poll(2) events
    size_t sent = 0, received = 0;
    HelloFrame frame{}, reply{};
    std::string why = "no answer yet";
  };

  bool move(Attempt& attempt);  // true once it is answered
  bool connect(Attempt& attempt);
  bool exchange_hellos(Attempt& attempt);
  void begin(Attempt& attempt) const;
  // False, after a call on the socket has failed: awaits `events` if that is all it lacked, else tries again.
  bool await(Attempt& attempt, short events);
  bool retry(Attempt& attempt, std::string why);

  const TlsContext* tls_;
  std::vector<Attempt> attempts_;
  std::vector<Arrival> answers_;
  std::optional<Refusal> refusal_;
};

}  // namespace ringdp::transport
