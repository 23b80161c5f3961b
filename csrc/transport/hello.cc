#include "transport/hello.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace ringdp::transport {
namespace {

constexpr char kMagic[8] = {'r', 'i', 'n', 'g', 'd', 'p', '\r', '\n'};
constexpr size_t kChecksumAt = kHelloBytes - sizeof(uint64_t);

class Writer {
 public:
  explicit Writer(std::byte* at) : at_(at) {}
  template <class Integer>
  void number(Integer value) {
    for (size_t i = 0; i < sizeof value; ++i) *at_++ = static_cast<std::byte>(value >> (8 * i));
  }
  void bytes(const void* from, size_t size) {
    std::memcpy(at_, from, size);
    at_ += size;
  }

 private:
  std::byte* at_;
};

class Reader {
 public:
  explicit Reader(const std::byte* at) : at_(at) {}
  template <class Integer>
  Integer number() {
    Integer value = 0;
    for (size_t i = 0; i < sizeof value; ++i) value |= std::to_integer<Integer>(*at_++) << (8 * i);
    return value;
  }
  void bytes(void* to, size_t size) {
    std::memcpy(to, at_, size);
    at_ += size;
  }

 private:
  const std::byte* at_;
};

// FNV-1a: each step is a bijection of the state, so one changed byte always changes the result.
uint64_t checksum(const std::byte* bytes, size_t size) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ std::to_integer<uint64_t>(bytes[i])) * 0x100000001b3u;
  return hash;
}

bool is_plausible(const Hello& hello) {
  const bool known_channel = hello.channel >= Channel::kControl && hello.channel <= Channel::kMessages;
  return known_channel && hello.from >= 0 && hello.from < hello.world && hello.to >= 0 && hello.to < hello.world &&
         hello.from != hello.to;
}

// Not std::equal: that stops at the first difference, which tells an attacker how far he has guessed.
bool equal_in_constant_time(const HelloFrame& a, const HelloFrame& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= std::to_integer<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

HelloFrame encode(const Hello& hello) {
  HelloFrame frame;
  Writer out(frame.data());
  out.bytes(kMagic, sizeof kMagic);
  out.number(kProtocolVersion);
  out.number(static_cast<uint32_t>(hello.channel));
  out.number(hello.stream);
  out.number(hello.group);
  out.number(hello.generation);
  out.number(static_cast<uint32_t>(hello.from));
  out.number(static_cast<uint32_t>(hello.to));
  out.number(static_cast<uint64_t>(hello.world));
  out.bytes(hello.token.data(), kTokenBytes);
  out.number(checksum(frame.data(), kChecksumAt));
  return frame;
}

std::optional<Hello> decode(const std::byte* frame, size_t size) {
  if (size != kHelloBytes || std::memcmp(frame, kMagic, sizeof kMagic) != 0) return std::nullopt;
  Reader in(frame + sizeof kMagic);
  if (in.number<uint32_t>() != kProtocolVersion) return std::nullopt;
  Hello hello;
  hello.channel = static_cast<Channel>(in.number<uint32_t>());
  hello.stream = in.number<uint32_t>();
  hello.group = in.number<uint64_t>();
  hello.generation = in.number<uint64_t>();
  hello.from = static_cast<int32_t>(in.number<uint32_t>());
  hello.to = static_cast<int32_t>(in.number<uint32_t>());
  const auto world = in.number<uint64_t>();
  if (world > INT32_MAX) return std::nullopt;
  hello.world = static_cast<int32_t>(world);
  in.bytes(hello.token.data(), kTokenBytes);
  if (in.number<uint64_t>() != checksum(frame, kChecksumAt) || !is_plausible(hello)) return std::nullopt;
  return hello;
}

bool matches(const Hello& got, const Hello& expected) { return equal_in_constant_time(encode(got), encode(expected)); }

Hello reply_to(const Hello& hello) {
  Hello reply = hello;
  std::swap(reply.from, reply.to);
  return reply;
}

void fill_random(void* bytes, size_t size) {
  auto* at = static_cast<std::byte*>(bytes);
  while (size > 0) {
    const ssize_t got = ::getrandom(at, size, 0);
    if (got < 0 && errno != EINTR) throw_errno("getrandom");
    if (got <= 0) continue;
    at += got;
    size -= static_cast<size_t>(got);
  }
}

std::string to_hex(const std::byte* bytes, size_t size) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * size);
  for (size_t i = 0; i < size; ++i) {
    text += kDigits[std::to_integer<unsigned>(bytes[i]) >> 4];
    text += kDigits[std::to_integer<unsigned>(bytes[i]) & 15];
  }
  return text;
}

bool from_hex(const std::string& text, std::byte* bytes, size_t size) {
  if (text.size() != 2 * size) return false;
  for (size_t i = 0; i < size; ++i) {
    const int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i] = static_cast<std::byte>(high * 16 + low);
  }
  return true;
}

}  // namespace ringdp::transport
