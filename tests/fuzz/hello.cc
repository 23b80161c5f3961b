// The first bytes on every socket (csrc/transport/hello.h).
#include "transport/hello.h"

#include "target.h"

namespace ringdp::fuzz {
namespace {

using transport::Hello;
using transport::HelloFrame;

Hello any_hello(Input& input) {
  Hello hello;
  hello.channel = static_cast<transport::Channel>(input.up_to(5));
  hello.stream = input.number<uint32_t>();
  hello.group = input.number<uint64_t>();
  hello.generation = input.number<uint64_t>();
  hello.from = input.number<int32_t>();
  hello.to = input.number<int32_t>();
  hello.world = input.number<int32_t>();
  for (std::byte& byte : hello.token) byte = input.number<std::byte>();
  return hello;
}

bool is_possible(const Hello& hello) {
  const auto is_rank = [&](int rank) { return rank >= 0 && rank < hello.world; };
  const int channel = static_cast<int>(hello.channel);
  return channel >= 1 && channel <= 3 && is_rank(hello.from) && is_rank(hello.to) && hello.from != hello.to;
}

}  // namespace

FUZZ_TARGET(hello) {
  Input fields = input;
  const std::string raw = input.rest();
  if (const auto hello = transport::decode(reinterpret_cast<const std::byte*>(raw.data()), raw.size())) {
    const HelloFrame frame = transport::encode(*hello);
    require(std::memcmp(frame.data(), raw.data(), frame.size()) == 0, "a hello is what encode() writes");
  }
  const Hello hello = any_hello(fields);
  HelloFrame frame = transport::encode(hello);
  const auto copy = transport::decode(frame.data(), frame.size());
  require(copy.has_value() == is_possible(hello), "a hello of two ranks of its world is read, another is not");
  require(!copy || transport::matches(*copy, hello), "a hello survives the wire");
  require(!copy || transport::matches(transport::reply_to(transport::reply_to(hello)), hello), "a reply's reply");
  frame[fields.number<uint8_t>() % frame.size()] ^= static_cast<std::byte>(1 << fields.up_to(7));
  require(!transport::decode(frame.data(), frame.size()), "one changed bit is seen");
}

}  // namespace ringdp::fuzz
