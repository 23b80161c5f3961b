// The first bytes on every socket, in both directions: the two ranks, their group, and a one-time token; and the
// listener that admits only connections with the hello it expects.
#pragma once
#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "transport/socket.h"

namespace ringdp::transport {

// A frame has a fixed size and no length field: decoding allocates nothing and trusts no number it reads. Every failure
// closes the socket. Numbers are little-endian.
constexpr uint32_t kProtocolVersion = 9;
constexpr size_t kTokenBytes = 32;
constexpr size_t kHelloBytes = 92;

using Token = std::array<std::byte, kTokenBytes>;
using HelloFrame = std::array<std::byte, kHelloBytes>;

enum class Purpose : uint32_t { kControl = 1, kBulk = 2, kMessages = 3 };

struct Hello {
  uint64_t group = 0;       // random, one per group
  uint64_t generation = 0;  // a rank of an earlier start of the group is refused by it
  int32_t from = 0, to = 0, world = 0;
  Purpose purpose = Purpose::kControl;
  Token token{};
  uint32_t stream = 0;  // index among the connections of that purpose
};

HelloFrame encode(const Hello& hello);

// nullopt unless the frame is whole, undamaged and of this version, and names two different ranks of its world.
std::optional<Hello> decode(const std::byte* frame, size_t size);

// Whether all fields are equal; takes constant time, whichever bytes differ.
bool matches(const Hello& got, const Hello& expected);

// What the other side of the same purpose must send.
Hello reply_to(const Hello& hello);

// Bytes from the kernel's random source. Error(kInternal) when it has none.
void fill_random(void* bytes, size_t size);

// Lower-case hexadecimal digits, two per byte.
std::string to_hex(const std::byte* bytes, size_t size);

// False unless `text` is exactly 2 * size lower-case hexadecimal digits.
bool from_hex(const std::string& text, std::byte* bytes, size_t size);

// Each rank once, ascending.
std::vector<int> distinct(std::vector<int> ranks);

// A connection on which both sides have said who they are.
struct Arrival {
  Hello hello;  // of the other side: hello.from is its rank
  Socket socket;
};

// Serves one listener during the bootstrap: admits the expected ranks and no other connection, whatever arrives.
//
// A connection has one second to deliver its hello, including the handshake under TLS. At most 64 more than are
// expected wait at once, each with a buffer of fixed size; beyond that the oldest is dropped. A refused connection is
// counted and closed, with no answer but TLS's own. Single-threaded; borrows its listener.
class Acceptor {
 public:
  static constexpr size_t kMostStrangers = 64;
  static constexpr std::chrono::milliseconds kHelloTimeout{1000};

  // A last check of a connection with a valid hello, e.g. of its credentials.
  using Admit = std::function<bool(int socket, int rank)>;

  // `expected`: the hellos that must come, one connection each. `tls`: null for plain text.
  Acceptor(int listener, std::vector<Hello> expected, Admit admit, const TlsContext* tls = nullptr);

  // Serves what has arrived, and never waits. True once all expected hellos have come.
  bool advance();

  // For poll(2), between two calls of advance(): what to wait for, and for how long, `most_ms` at most.
  void add_polls(std::vector<pollfd>& polls) const;
  int poll_ms(int most_ms) const;

  std::vector<int> missing() const;  // ranks, ascending
  size_t refused() const { return refused_; }
  const std::string& why_refused() const { return why_refused_; }  // the last TLS failure; empty: none
  size_t waiting() const { return waiting_.size(); }
  std::vector<Arrival> take_arrivals() { return std::move(arrivals_); }

 private:
  struct Waiting {
    Socket socket;
    Deadline deadline;
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
