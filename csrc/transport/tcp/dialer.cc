#include "transport/tcp/dialer.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "transport/tcp/tcp_socket.h"

namespace ringdp::transport {
namespace {

constexpr int kFirstPauseMs = 2, kLongestPauseMs = 200;

bool is_worth_retrying(int code) {
  return code == ECONNREFUSED || code == ECONNRESET || code == ECONNABORTED || code == ETIMEDOUT ||
         code == EHOSTUNREACH || code == ENETUNREACH || code == EAGAIN || code == EINTR;
}

std::string words_of(int code) { return std::generic_category().message(code); }

}  // namespace

Dialer::Dialer(std::vector<Call> calls, const TlsContext* tls) : tls_(tls) {
  for (Call& call : calls) {
    const HelloFrame frame = encode(call.hello);
    attempts_.push_back({std::move(call), {}, Deadline::after(std::chrono::milliseconds(0)), kFirstPauseMs});
    attempts_.back().frame = frame;
  }
}

bool Dialer::advance() {
  for (size_t i = 0; i < attempts_.size();) {
    if (!move(attempts_[i])) {
      ++i;
      continue;
    }
    answers_.push_back({reply_to(attempts_[i].call.hello), std::move(attempts_[i].socket)});
    attempts_.erase(attempts_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return attempts_.empty();
}

void Dialer::add_polls(std::vector<pollfd>& polls) const {
  for (const Attempt& attempt : attempts_) {
    if (attempt.socket) polls.push_back({attempt.socket.get(), attempt.awaits, 0});
  }
}

int Dialer::poll_ms(int most_ms) const {
  for (const Attempt& attempt : attempts_) {
    if (!attempt.socket) most_ms = attempt.resume.poll_ms(most_ms);
  }
  return most_ms;
}

std::vector<int> Dialer::missing() const {
  std::vector<int> ranks;
  for (const Attempt& attempt : attempts_) ranks.push_back(attempt.call.hello.to);
  return distinct(std::move(ranks));
}

std::string Dialer::obstacle() const {
  return attempts_.empty() ? "" : attempts_.front().call.to.text() + ": " + attempts_.front().why;
}

bool Dialer::move(Attempt& attempt) {
  if (!attempt.socket && !attempt.resume.passed()) return false;
  if (!attempt.socket) begin(attempt);
  return (attempt.is_connected || connect(attempt)) && exchange_hellos(attempt);
}

void Dialer::begin(Attempt& attempt) const {
  UniqueFd fd = open_tcp(attempt.call.to);
  const std::string peer = "rank " + std::to_string(attempt.call.hello.to) + " at " + attempt.call.to.text();
  auto tls = tls_ ? tls_->connect(fd.get(), peer) : nullptr;
  attempt.socket = Socket(std::move(fd), std::move(tls));
  attempt.is_connected = false;
  attempt.sent = attempt.received = 0;
}

// connect(2) on a socket that is being connected says how far it is.
bool Dialer::connect(Attempt& attempt) {
  const SocketAddress& to = attempt.call.to;
  if (::connect(attempt.socket.get(), to.raw(), to.size) == 0 || errno == EISCONN) return attempt.is_connected = true;
  if (errno == EINPROGRESS || errno == EALREADY) {
    attempt.awaits = POLLOUT;
    return false;
  }
  if (!is_worth_retrying(errno)) throw_errno("cannot connect to " + to.text());
  return retry(attempt, words_of(errno));
}

bool Dialer::exchange_hellos(Attempt& attempt) {
  const SocketView socket = attempt.socket.view();
  if (!socket.handshake()) return await(attempt, POLLIN);
  while (attempt.sent < kHelloBytes) {
    const ssize_t sent = socket.send(attempt.frame.data() + attempt.sent, kHelloBytes - attempt.sent);
    if (sent < 0) return await(attempt, POLLOUT);
    attempt.sent += static_cast<size_t>(sent);
  }
  while (attempt.received < kHelloBytes) {
    const ssize_t got = socket.recv(attempt.reply.data() + attempt.received, kHelloBytes - attempt.received);
    if (got < 0) return await(attempt, POLLIN);
    if (got == 0) return retry(attempt, "it closes the connection");
    attempt.received += static_cast<size_t>(got);
  }
  const auto hello = decode(attempt.reply.data(), attempt.reply.size());
  return (hello && matches(*hello, reply_to(attempt.call.hello))) || retry(attempt, "another program answers");
}

bool Dialer::await(Attempt& attempt, short events) {
  if (errno == EAGAIN || errno == EINTR) {
    attempt.awaits = events;
    return false;
  }
  // A side that refuses a certificate sends an alert before it closes, which can be read even if sending failed.
  const int code = errno;
  std::byte byte{};
  attempt.socket.view().recv(&byte, sizeof byte);
  return retry(attempt, words_of(code));
}

bool Dialer::retry(Attempt& attempt, std::string why) {
  const std::string failure = attempt.socket.view().failure();
  if (!failure.empty() && !refusal_) refusal_ = Refusal{attempt.call.hello.to, failure};
  attempt.why = std::move(why);
  attempt.socket = {};
  attempt.resume = Deadline::after(std::chrono::milliseconds(attempt.pause_ms));
  attempt.pause_ms = std::min(2 * attempt.pause_ms, kLongestPauseMs);
  return false;
}

}  // namespace ringdp::transport
