// A mailbox (csrc/comm/mailbox.h) whose peer sends what it likes: frames in any order, payload, and bytes that are neither.
#include <deque>
#include <memory>

#include "comm/frame.h"
#include "comm/mailbox.h"
#include "from_peer.h"
#include "target.h"

namespace ringdp::fuzz {
namespace {

// A rank of two with its messages, whose memory is just as large as they say.
class Rank {
 public:
  explicit Rank(size_t piece) : link_(piece) {}

  void post(Input& input) {
    const auto direction = static_cast<comm::Direction>(input.up_to(1));
    comm::MessageRequest request;
    request.peer = direction == comm::Direction::kReceive && input.up_to(1) ? comm::kAnySource : 1;
    request.tag = input.up_to(3);
    request.dtype = input.up_to(1) ? DType::kU8 : DType::kF32;
    request.count = input.up_to(20);
    memory_.emplace_back(static_cast<size_t>(request.count * size_of(request.dtype)));
    request.memory = memory_.back().data();
    mailbox_.post(std::make_shared<comm::Message>(direction, std::move(request)));
  }

  void hear(Input& input) {
    switch (input.up_to(4)) {
      case 0: link_.sent += input.bytes(input.number<uint8_t>()); break;
      case 1: hear_frame(comm::FrameKind::kAccept, input); break;
      case 2: hear_frame(comm::FrameKind::kData, input); break;
      default: hear_frame(comm::FrameKind::kOffer, input); break;
    }
  }

  void advance() {
    while (mailbox_.advance()) {
    }
    for (const auto& message : mailbox_.take_finished()) message->waits_for();
    mailbox_.waiting_offer(1);
  }

 private:
  void hear_frame(comm::FrameKind kind, Input& input) {
    comm::Frame frame;
    frame.kind = kind;
    frame.id = static_cast<uint64_t>(input.up_to(8));
    if (kind == comm::FrameKind::kOffer) {
      frame.tag = input.up_to(3);
      frame.dtype = input.up_to(1) ? DType::kU8 : DType::kF32;
      frame.count = input.up_to(20);
    }
    const comm::FrameBytes bytes = comm::encode(frame);
    link_.sent.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  FromPeer link_;
  std::deque<std::vector<std::byte>> memory_;
  comm::Mailbox mailbox_{0, {nullptr, &link_}};
};

}  // namespace

FUZZ_TARGET(messages) {
  Rank rank(1 + input.number<uint8_t>());
  refuses({ErrorKind::kMismatch, ErrorKind::kInternal}, [&] {
    while (input.left() > 0) {
      input.up_to(2) ? rank.hear(input) : rank.post(input);
      rank.advance();
    }
  });
}

}  // namespace ringdp::fuzz
