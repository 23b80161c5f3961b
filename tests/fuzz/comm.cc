// What ranks read of each other: peer infos, addresses, control messages, frames, and what lies in the store.
#include <chrono>
#include <deque>
#include <memory>

#include "base/settings.h"
#include "base/text.h"
#include "comm/bootstrap_steps.h"
#include "comm/mailbox.h"
#include "comm/memory_store.h"
#include "comm/peer_info.h"
#include "comm/store_exchange.h"
#include "comm/watch.h"
#include "target.h"

namespace ringdp::fuzz {

// What a rank publishes about itself (csrc/comm/peer_info.h), with the identity and thresholds in it.
namespace {

comm::PeerInfo real_info(Input& input) {
  comm::PeerInfo info;
  info.identity.host = "a.host";
  info.identity.boot_id = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
  info.identity.network_namespace = input.number<uint64_t>();
  info.identity.pid = input.number<uint32_t>();
  info.identity.start_time = input.number<uint32_t>();
  if (input.up_to(1)) info.socket_name = "ringdp-00112233445566778899aabbccddeeff";
  info.settings = comm::shared_settings(Settings{});
  info.heap_bytes = input.number<uint32_t>();
  info.world = input.number<uint16_t>();
  if (input.up_to(1)) info.secret = comm::Secret{input.number<uint64_t>(), {}};
  if (input.up_to(1)) info.endpoint = {*transport::SocketAddress::parse("fd00::1", 4711), 1 + input.up_to(63)};
  return info;
}

void check_info(const std::string& text) {
  const auto info = comm::peer_info_from_text(text);
  require(!info || comm::to_text(*info) == text, "a peer info is what to_text() writes");
  require(comm::protocol_of_peer_info(text) || !info, "a peer info names its protocol");
  const auto identity = transport::identity_from_line(text);
  require(!identity || transport::to_line(*identity) == text, "an identity is what to_line() writes");
  const auto thresholds = thresholds_from_text(text);
  require(!thresholds || to_text(*thresholds) == text, "thresholds are what to_text() writes");
}

}  // namespace

FUZZ_TARGET(peer_info) {
  Input raw = input;
  check_info(raw.rest());
  const comm::PeerInfo info = real_info(input);
  const std::string text = comm::to_text(info);
  require(comm::peer_info_from_text(text).has_value(), "a peer info is read");
  Input same = input;
  check_info(edited(text, same));
  same = input;
  check_info(edited(transport::to_line(info.identity), same));
  check_info(edited(to_text(info.thresholds), input));
}

// What ranks tell each other apart from the collectives (csrc/comm/watch.h).
namespace {

using comm::ControlKind;
using comm::ControlMessage;

// All messages of a stream that comes in pieces of `piece` bytes; `refused` when it was refused at the end of them.
std::string parsed(const std::string& stream, size_t piece, bool* refused) {
  comm::ControlParser parser;
  std::string written;
  *refused = refuses({ErrorKind::kInternal}, [&] {
    for (size_t at = 0; at < stream.size(); at += piece) {
      const std::string part = stream.substr(at, piece);
      for (const ControlMessage& message : parser.feed(part.data(), part.size())) written += comm::encode(message);
    }
  });
  return written;
}

void check_stream(const std::string& stream, size_t piece) {
  bool refused = false, refused_whole = false;
  const std::string written = parsed(stream, piece, &refused);
  bool refused_again = false;
  require(parsed(written, piece, &refused_again) == written && !refused_again, "messages are what encode() writes");
  const std::string whole = parsed(stream, stream.size() + 1, &refused_whole);
  require(refused == refused_whole && (refused || whole == written), "it does not matter how a stream is cut");
}

}  // namespace

FUZZ_TARGET(control) {
  Input fields = input;
  const size_t piece = 1 + input.number<uint8_t>();
  check_stream(input.rest(), piece);

  fields.number<uint8_t>();
  std::string stream, printed;
  bool possible = true;
  while (fields.left() > 0) {
    ControlMessage message;
    message.kind = static_cast<ControlKind>(fields.up_to(3));
    message.error = static_cast<ErrorKind>(fields.up_to(6));
    message.culprit = fields.number<int32_t>();
    message.origin = fields.number<int32_t>();
    message.seq = fields.number<uint64_t>();
    message.text = fields.bytes(fields.number<uint16_t>() % (2 * comm::kMaxText));
    stream += comm::encode(message);
    message.text = printable(message.text.substr(0, comm::kMaxText), comm::kMaxText);
    printed += comm::encode(message);
    possible &= message.kind <= ControlKind::kGoodbye && message.error <= ErrorKind::kInternal;
  }
  check_stream(stream, piece);
  bool refused = false;
  const std::string written = parsed(stream, piece, &refused);
  require(refused != possible, "what can be meant is read, and nothing else");
  require(refused || written == printed, "messages survive the wire");
  if (!stream.empty()) stream[piece % stream.size()] ^= 1;
  check_stream(stream, piece);
}

// The frames between mailboxes (csrc/comm/mailbox.h).
namespace {

using comm::Frame;
using comm::FrameKind;

bool is_possible(const Frame& frame) {
  const bool bare = frame.tag == 0 && frame.dtype == DType::kU8 && frame.count == 0;
  const int kind = static_cast<int>(frame.kind);
  return kind >= 1 && kind <= 3 && (frame.kind == FrameKind::kOffer || bare) && frame.id != 0 && frame.count >= 0 &&
         static_cast<int>(frame.dtype) < kDTypeCount;
}

}  // namespace

FUZZ_TARGET(frame) {
  Input fields = input;
  comm::FrameBytes raw;
  for (std::byte& byte : raw) byte = input.number<std::byte>();
  const auto read = comm::decode(raw);
  require(!read || comm::encode(*read) == raw, "a frame is what encode() writes");

  Frame frame;
  frame.kind = static_cast<FrameKind>(fields.up_to(4));
  frame.dtype = static_cast<DType>(fields.up_to(kDTypeCount));
  frame.tag = fields.number<int32_t>();
  frame.id = fields.number<uint64_t>();
  frame.count = fields.number<int64_t>();
  comm::FrameBytes bytes = comm::encode(frame);
  const auto copy = comm::decode(bytes);
  require(copy.has_value() == is_possible(frame), "what can be meant is read, and nothing else");
  require(!copy || comm::encode(*copy) == bytes, "a frame survives the wire");
  bytes[fields.number<uint8_t>() % bytes.size()] ^= static_cast<std::byte>(1 << fields.up_to(7));
  require(!comm::decode(bytes), "one changed bit is seen");
}

// A mailbox (csrc/comm/mailbox.h) whose peer sends what it likes: frames in any order, payload, and bytes that are
// neither.
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
      case 0:
        link_.sent += input.bytes(input.number<uint8_t>());
        break;
      case 1:
        hear_frame(comm::FrameKind::kAccept, input);
        break;
      case 2:
        hear_frame(comm::FrameKind::kData, input);
        break;
      default:
        hear_frame(comm::FrameKind::kOffer, input);
        break;
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

// Where a rank listens (csrc/comm/peer_info.h).
namespace {

void check_endpoint(const std::string& text) {
  const auto endpoint = comm::tcp_endpoint_from_text(text);
  require(!endpoint || comm::to_text(*endpoint) == text, "an endpoint is what to_text() writes");
}

}  // namespace

FUZZ_TARGET(tcp_endpoint) {
  Input raw = input;
  check_endpoint(raw.rest());
  const char* const host = input.up_to(1) ? "10.0.0.1" : "fd00::1:2";
  const int port = 1 + input.number<uint16_t>() % 65535;
  const comm::TcpEndpoint endpoint{*transport::SocketAddress::parse(host, port), 1 + input.up_to(63),
                                   input.number<uint16_t>()};
  const std::string text = comm::to_text(endpoint);
  const auto copy = comm::tcp_endpoint_from_text(text);
  require(copy && comm::to_text(*copy) == text, "an endpoint is read");
  check_endpoint(edited(text, input));
}

// A store exchange (csrc/comm/store_exchange.h) over a store with values that other processes have written.
namespace {

// Timeouts, or what another rank has said.
constexpr std::initializer_list<ErrorKind> kGivenUp = {ErrorKind::kTimeout, ErrorKind::kAborted, ErrorKind::kPeerLost,
                                                       ErrorKind::kInternal};

const comm::PeerInfo kInfo{transport::local_identity(), "", comm::shared_settings(Settings{}), {}, 0, 3};

// Under the keys that ranks read, of two generations: a peer info, or anything.
void fill(transport::Store& store, Input& input) {
  static const char* const kKeys[] = {"1/peer_info/0", "1/peer_info/1", "2/peer_info/0", "2/peer_info/1",
                                      "generation/0",  "generation/2",  "1/failed",      "2/failed",
                                      "1/duplicate",   "2/duplicate",   "2/address/0",   "1/address/0"};
  while (input.left() > 0) {
    const char* const key = kKeys[input.up_to(std::size(kKeys) - 1)];
    const std::string value = input.bytes(input.number<uint16_t>());
    store.set(key, value.empty() ? comm::to_text(kInfo) : value);
  }
}

}  // namespace

FUZZ_TARGET(rendezvous) {
  comm::MemoryStore store;
  if (input.up_to(1)) store.set("generation/1", "1");  // an earlier life
  fill(store, input);
  comm::StoreExchange store_exchange(store, 1, 3, Deadline::after(std::chrono::nanoseconds(0)));
  store_exchange.set_losses([] { return std::vector<comm::Loss>{{0, {}, comm::kDied}}; });
  require(refuses(kGivenUp,
                  [&] {
                    store_exchange.gather("address", {0, 2});
                  }),
          "nobody waits longer than his deadline");
}

}  // namespace ringdp::fuzz
