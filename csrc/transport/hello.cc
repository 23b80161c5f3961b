#include "transport/hello.h"

#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "transport/tcp/address.h"

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
  const bool known_purpose = hello.purpose >= Purpose::kControl && hello.purpose <= Purpose::kMessages;
  return known_purpose && hello.from >= 0 && hello.from < hello.world && hello.to >= 0 && hello.to < hello.world &&
         hello.from != hello.to;
}

// Unlike std::equal, which stops at the first difference and so tells an attacker how much of a guess is right.
bool equal_in_constant_time(const HelloFrame& a, const HelloFrame& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= std::to_integer<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// A flood of connections must not starve those that are already waiting.
constexpr int kAcceptsPerRound = 64;

bool is_out_of_room(int code) { return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM; }

// Errors of the connection that was about to be accepted, not of the listener (accept(2)).
bool belongs_to_connection(int code) {
  return code == ECONNABORTED || code == EINTR || code == EPROTO || code == ENETDOWN || code == EHOSTDOWN ||
         code == ENONET || code == EHOSTUNREACH || code == ENETUNREACH || code == ENOPROTOOPT || code == EPERM;
}

}  // namespace

HelloFrame encode(const Hello& hello) {
  HelloFrame frame;
  Writer out(frame.data());
  out.bytes(kMagic, sizeof kMagic);
  out.number(kProtocolVersion);
  out.number(static_cast<uint32_t>(hello.purpose));
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
  hello.purpose = static_cast<Purpose>(in.number<uint32_t>());
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

std::vector<int> distinct(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

Acceptor::Acceptor(int listener, std::vector<Hello> expected, Admit admit, const TlsContext* tls)
    : listener_(listener), tls_(tls), expected_(std::move(expected)), admit_(std::move(admit)) {}

bool Acceptor::advance() {
  if (!expected_.empty()) {
    serve_waiting();
    accept_new();
  }
  if (!expected_.empty()) return false;
  refused_ += waiting_.size();
  waiting_.clear();
  return true;
}

void Acceptor::add_polls(std::vector<pollfd>& polls) const {
  if (expected_.empty()) return;
  polls.push_back({listener_, POLLIN, 0});
  for (const Waiting& waiting : waiting_) polls.push_back({waiting.socket.get(), POLLIN, 0});
}

int Acceptor::poll_ms(int most_ms) const {
  for (const Waiting& waiting : waiting_) most_ms = waiting.deadline.poll_ms(most_ms);
  return most_ms;
}

std::vector<int> Acceptor::missing() const {
  std::vector<int> ranks;
  for (const Hello& hello : expected_) ranks.push_back(hello.from);
  return distinct(std::move(ranks));
}

void Acceptor::accept_new() {
  for (int i = 0; i < kAcceptsPerRound && !expected_.empty(); ++i) {
    if (!accept_one()) return;
  }
}

bool Acceptor::accept_one() {
  SocketAddress from;
  from.size = sizeof from.storage;
  auto* const address = reinterpret_cast<sockaddr*>(&from.storage);
  UniqueFd socket(::accept4(listener_, address, &from.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  const bool room_is_short = !socket && is_out_of_room(errno);
  if (!socket && !room_is_short) {
    if (belongs_to_connection(errno)) return true;
    if (errno == EAGAIN) return false;
    throw_errno("accept");
  }
  if (room_is_short && waiting_.empty()) throw_errno("accept");
  if (room_is_short || waiting_.size() >= expected_.size() + kMostStrangers) {
    waiting_.erase(waiting_.begin());
    ++refused_;
    if (room_is_short) return true;
  }
  auto tls = tls_ ? tls_->accept(socket.get(), from.text()) : nullptr;
  waiting_.push_back({{std::move(socket), std::move(tls)}, Deadline::after(kHelloTimeout)});
  // A rank's hello has usually arrived already, so it never takes a place among those that wait.
  const Progress progress = read_hello(waiting_.back());
  if (progress != Progress::kNeedsMore) waiting_.pop_back();
  return true;
}

void Acceptor::serve_waiting() {
  const auto is_done = [this](Waiting& waiting) {
    if (read_hello(waiting) != Progress::kNeedsMore) return true;
    if (!waiting.deadline.passed()) return false;
    ++refused_;
    return true;
  };
  // Not std::remove_if, whose predicate must not change the element.
  for (size_t i = 0; i < waiting_.size();) {
    if (is_done(waiting_[i])) {
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

Acceptor::Progress Acceptor::read_hello(Waiting& waiting) {
  const SocketView socket = waiting.socket.view();
  const ssize_t got = socket.recv(waiting.frame.data() + waiting.received, kHelloBytes - waiting.received);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Progress::kNeedsMore;
  if (got > 0) waiting.received += static_cast<size_t>(got);
  if (got > 0 && waiting.received < kHelloBytes) return Progress::kNeedsMore;
  if (got > 0 && admit(waiting)) return Progress::kAdmitted;
  ++refused_;
  if (const std::string why = socket.failure(); !why.empty()) why_refused_ = why;
  return Progress::kRefused;
}

bool Acceptor::admit(Waiting& waiting) {
  const auto hello = decode(waiting.frame.data(), waiting.frame.size());
  if (!hello) return false;
  const auto found = std::find_if(expected_.begin(), expected_.end(),
                                  [&](const Hello& expected) { return matches(*hello, expected); });
  if (found == expected_.end() || !admit_(waiting.socket.get(), hello->from)) return false;
  // The send buffer of a new connection is empty, so the reply fits or the connection is dead.
  const HelloFrame reply = encode(reply_to(*hello));
  const ssize_t sent = waiting.socket.view().send(reply.data(), reply.size());
  if (sent != static_cast<ssize_t>(reply.size())) return false;
  arrivals_.push_back({*hello, std::move(waiting.socket)});
  expected_.erase(found);
  return true;
}

}  // namespace ringdp::transport
