#include "transport/acceptor.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/error.h"
#include "transport/tcp/address.h"

namespace ringdp::transport {
namespace {

// A flood of connections must not starve those that already wait.
constexpr int kAcceptsPerRound = 64;

bool is_out_of_room(int code) { return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM; }

// Errors that belong to the connection that was about to be accepted, not to the listener (accept(2)).
bool belongs_to_connection(int code) {
  return code == ECONNABORTED || code == EINTR || code == EPROTO || code == ENETDOWN || code == EHOSTDOWN ||
         code == ENONET || code == EHOSTUNREACH || code == ENETUNREACH || code == ENOPROTOOPT || code == EPERM;
}

}  // namespace

Acceptor::Acceptor(int listener, std::vector<Hello> expected, Admit admit, const TlsContext* tls)
    : listener_(listener), tls_(tls), expected_(std::move(expected)), admit_(std::move(admit)) {
  waiting_.reserve(kMostWaiting);
}

bool Acceptor::serve(int wait_ms) {
  if (expected_.empty()) return true;
  std::array<pollfd, kMostWaiting + 1> entries;
  entries[0] = {listener_, POLLIN, 0};
  for (size_t i = 0; i < waiting_.size(); ++i) {
    entries[i + 1] = {waiting_[i].socket.get(), POLLIN, 0};
    wait_ms = waiting_[i].give_up.poll_ms(wait_ms);
  }
  if (::poll(entries.data(), waiting_.size() + 1, wait_ms) < 0 && errno != EINTR) throw_errno("poll");
  serve_waiting();
  accept_new();
  return expected_.empty();
}

std::vector<int> Acceptor::missing() const {
  std::vector<int> ranks;
  for (const Hello& hello : expected_) ranks.push_back(hello.from);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
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
  if (room_is_short || waiting_.size() == kMostWaiting) {
    waiting_.erase(waiting_.begin());
    ++refused_;
    if (room_is_short) return true;
  }
  auto tls = tls_ ? tls_->accept(socket.get(), from.text()) : nullptr;
  waiting_.push_back({{std::move(socket), std::move(tls)}, Deadline::after(kPatience)});
  // An honest rank's hello is usually here already, so it never takes a place among those who wait.
  const Progress progress = read_hello(waiting_.back());
  if (progress != Progress::kNeedsMore) waiting_.pop_back();
  return true;
}

void Acceptor::serve_waiting() {
  const auto is_done = [this](Waiting& waiting) {
    if (read_hello(waiting) != Progress::kNeedsMore) return true;
    if (!waiting.give_up.passed()) return false;
    ++refused_;
    return true;
  };
  // Not remove_if: its predicate must not change what it looks at.
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
