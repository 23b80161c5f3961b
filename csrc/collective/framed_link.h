// A link that the collectives in flight of a group share: each has a lane of its own there, in either direction.
//
// What lanes carry travels in frames that name their collective. The first one that has not sent all sends as much as
// the link takes; one behind it may send so many bytes ahead that results of earlier ones, which are not known yet, do
// not hold it up. The receiver takes what arrives for later collectives off the link and keeps it: an earlier
// collective never waits for a later one, whatever their plans are, and a rank may send ahead what its peer has not
// called yet.
//
// Owned by one group and called by its driver. Nothing blocks.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "transport/link.h"

namespace ringdp::collective {

// At most so many collectives of a group are in flight.
constexpr size_t kMostInFlight = 8;

// What a rank may send to a peer ahead of a collective's turn, in bytes; alike on all ranks of a group of `world`.
size_t ahead_bytes(int world);

struct Frame {
  uint32_t seq = 0;  // of the collective, its last 32 bits
  uint32_t bytes = 0;
  uint32_t sum = 0;  // CRC-32C of the other two, which are used before anything behind them has been checked
};
Frame make_frame(uint64_t seq, size_t bytes);

class FramedLink {
 public:
  // `link` to `peer` must outlive this.
  FramedLink(transport::Link& link, int peer, size_t ahead) : link_(link), peer_(peer), ahead_(ahead) {}

  // As those of Link, on the lane of collective `seq` (1, 2, ...). Bytes that were not sent must be offered again, and
  // no fewer. Throw what the link throws, and Error(kInternal) for frames that no peer sends.
  size_t try_send(uint64_t seq, const void* bytes, size_t size);
  size_t try_recv(uint64_t seq, void* bytes, size_t size);

  // `seq` has sent all; said again, nothing.
  void finish_sending(uint64_t seq);

  // Whether there is something to poll(2) for: otherwise another collective's frame or turn comes first.
  bool may_send(uint64_t seq) const { return is_open() ? out_.seq == seq : allowance(seq) > 0; }
  bool may_receive(uint64_t seq) const { return in_.left == 0 || in_.seq >= seq; }
  bool is_sending(uint64_t seq) const { return is_open() && out_.seq == seq; }  // in the middle of a frame

  // Whether a frame has begun to arrive since the last call: what it is for may have been asked for bytes before. A
  // link that reads ahead leaves nothing to poll for.
  bool take_arrived() { return std::exchange(arrived_, false); }
  uint64_t take_frame_bytes() { return std::exchange(frame_bytes_, 0); }  // of headers of frames sent since then

 private:
  // A frame and its header are one write, up to so many bytes.
  static constexpr size_t kStaged = 4096 - sizeof(Frame);

  struct Outgoing {
    uint64_t seq = 0;
    size_t left = 0;                                        // bytes of the frame not yet returned as sent
    std::array<std::byte, sizeof(Frame) + kStaged> staged;  // the header and the first of them
    size_t begin = 0, end = 0;                              // what of it has not been sent
  };
  struct Incoming {
    uint64_t seq = 0;
    size_t left = 0;    // bytes of the frame that have not arrived
    size_t header = 0;  // bytes of the next one's header that have
    Frame frame;
  };
  struct Kept {
    std::vector<std::byte> bytes;
    size_t begin = 0;  // of those that have not been received
  };
  struct Lane {
    size_t ahead = 0;  // bytes sent before its turn
    bool finished = false;
  };

  bool is_open() const { return out_.left > 0; }
  size_t allowance(uint64_t seq) const;
  Lane& lane(uint64_t seq);  // of turn_ or later
  void open_frame(uint64_t seq, const void* bytes, size_t size);
  size_t push(const void* bytes, size_t size);
  bool open_next(uint64_t seq);  // false: its header has not arrived
  bool keep(uint64_t reader);    // false: the frame has not arrived as a whole
  size_t take_kept(uint64_t seq, void* bytes, size_t size);

  transport::Link& link_;
  const int peer_;
  const size_t ahead_;
  uint64_t turn_ = 1;       // the first collective that has not sent all
  std::deque<Lane> lanes_;  // from turn_ on
  Outgoing out_;
  Incoming in_;
  bool arrived_ = false;
  uint64_t frame_bytes_ = 0;
  std::map<uint64_t, Kept> kept_;  // by collective
};

}  // namespace ringdp::collective
