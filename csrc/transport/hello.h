// The first bytes on every socket, in both directions: who speaks to whom in which group, and a one-time token.
//
// A fixed-size frame with no length field: decoding allocates nothing and believes no number it reads. Pure functions;
// every failure is answered alike, by closing the socket. Numbers travel little-endian.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace ringdp::transport {

constexpr uint32_t kProtocolVersion = 5;
constexpr size_t kTokenBytes = 32;
constexpr size_t kHelloBytes = 92;

using Token = std::array<std::byte, kTokenBytes>;
using HelloFrame = std::array<std::byte, kHelloBytes>;

enum class Channel : uint32_t { kControl = 1, kBulk = 2, kMessages = 3 };

struct Hello {
  uint64_t group = 0;       // random, one per group
  uint64_t generation = 0;  // a restarted rank of an older life is refused
  int32_t from = 0, to = 0, world = 0;
  Channel channel = Channel::kControl;
  Token token{};
  uint32_t stream = 0;  // which of the channel's connections
};

HelloFrame encode(const Hello& hello);

// nullopt unless the frame is whole, of this version, unharmed, and its ranks are two different ones of its world.
std::optional<Hello> decode(const std::byte* frame, size_t size);

// Whether all fields are equal; takes the same time whichever bytes differ.
bool matches(const Hello& got, const Hello& expected);

// What the other side of the same channel must send.
Hello reply_to(const Hello& hello);

// Bytes from the kernel's random source. Error(kInternal) when it has none.
void fill_random(void* bytes, size_t size);

// As lower-case hexadecimal digits, two a byte.
std::string to_hex(const std::byte* bytes, size_t size);

// False unless `text` is exactly 2 * size lower-case hexadecimal digits.
bool from_hex(const std::string& text, std::byte* bytes, size_t size);

}  // namespace ringdp::transport
