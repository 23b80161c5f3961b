// Several connections of two ranks as one link.
//
// Bytes travel in stripes, each of which stays on one stream, behind a header with its size and number. A stripe goes
// to a stream that poll(2) calls writable, which has room for all of it (with the smallest of buffers, for most), so a
// stream that waits for a lost packet holds up no other one. The receiver reads stripes in the order of their numbers,
// each from its stream into the caller's memory: what comes early waits in the kernel's buffers. Numbers grow along
// each stream, so the next stripe is always the first unread one of its stream, and can be read whatever the other
// streams hold.
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "transport/link.h"

namespace ringdp::transport {

// The most bytes behind a header.
constexpr size_t kStripeBytes = 64 << 10;
// What a stream may hold that its connection has not sent yet (TcpLink::Options::most_unsent). More would be bound to a
// stream long before it leaves, however quick the others are; less runs out while the driver has no core.
constexpr size_t kMostUnsent = 8 * kStripeBytes;

// Little-endian. Used before what follows it has been checked.
struct StripeHeader {
  uint32_t bytes = 0;   // of the stripe, 1..kStripeBytes
  uint32_t number = 0;  // 0, 1, ... over all streams; after 2^32 - 1 comes 0
  uint32_t sum = 0;     // CRC-32C of the other two
};
StripeHeader make_stripe_header(size_t bytes, uint32_t number);

// What was not sent must be offered again, unchanged: later bytes may have left on another stream. When a stream is
// lost, what lies before the lost bytes can still be read; then, and at once when sending, its Error(kPeerLost) is
// thrown. Error(kInternal) for headers that no peer writes.
class StripedLink : public Link {
 public:
  struct Options {
    int peer_rank = -1;  // for messages
    // For how long the other streams may be silent once one is lost: a peer that leaves closes all of them, but what it
    // sent last can be late on some.
    std::chrono::milliseconds patience{5000};
    uint32_t first_number = 0;  // of the first stripe, at both ends
  };

  // At least one stream. add_polls() of each adds one descriptor, writable when there is room for a stripe.
  StripedLink(std::vector<std::unique_ptr<Link>> streams, Options options);

  size_t try_send(const void* bytes, size_t size) override;
  size_t try_recv(void* bytes, size_t size) override;
  // To read: the stream of the stripe that is being read, or those whose next header has not arrived. To write: those
  // in the middle of a stripe, and where more is offered, all.
  void add_polls(short events, std::vector<pollfd>& polls) const override;
  const char* kind() const override { return streams_.front().link->kind(); }

 private:
  // A stripe that is this small is one write, together with its header.
  static constexpr size_t kSmallStripe = 4096;

  // Positions count the bytes of the link.
  struct Outgoing {
    uint64_t at = 0, end = 0;                                           // of the stripe: what has not been sent
    std::array<std::byte, sizeof(StripeHeader) + kSmallStripe> staged;  // the header and the first bytes
    size_t staged_at = 0, staged_end = 0;
    size_t room = 0;  // the stream takes so many bytes more: it had room for a stripe when it was asked last

    bool is_open() const { return at < end; }
  };
  struct Incoming {
    StripeHeader header;
    size_t arrived = 0;  // bytes of the header
    size_t left = 0;     // bytes of the stripe that have not been read

    bool is_known() const { return arrived == sizeof(StripeHeader); }
  };
  struct Stream {
    std::unique_ptr<Link> link;
    Outgoing out;
    Incoming in;
    std::exception_ptr loss;  // noticed by reading
  };
  struct Offer {
    const std::byte* bytes;
    uint64_t begin, end;
  };

  size_t after(size_t stream, size_t bytes) const;
  void send(const Offer& offer);
  std::optional<size_t> stream_with_room(size_t bytes);
  void ask_for_room();
  void open(Stream& stream, const Offer& offer, size_t bytes);
  void push(Stream& stream, const Offer& offer);

  size_t read(std::byte* bytes, size_t size);  // of one stripe
  bool find_next();                            // false: it has not arrived
  void read_header(Stream& stream);
  void check(const Stream& stream) const;
  void check_losses();
  [[noreturn]] void refuse(const std::string& what) const;

  std::vector<Stream> streams_;
  const Options options_;
  std::vector<pollfd> polls_;  // scratch
  // All before sent_ has been sent, all before assigned_ belongs to a stripe, and offered_ is the end of the last
  // offer.
  uint64_t sent_ = 0, assigned_ = 0, offered_ = 0;
  uint32_t number_out_, number_in_;       // of the next stripe to be opened, and of that to be read
  size_t turn_out_ = 0, turn_in_ = 0;     // the streams that are tried first
  std::optional<size_t> reading_;         // the stream of the next stripe, once its header has arrived
  std::exception_ptr failure_;            // of a read, behind bytes that were returned
  std::exception_ptr send_failure_;       // parts of a stripe may be missing
  std::optional<Deadline> until_silent_;  // while a stream is lost
};

}  // namespace ringdp::transport
