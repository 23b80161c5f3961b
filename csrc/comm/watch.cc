#include "comm/watch.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "base/crc32c.h"
#include "base/deadline.h"
#include "base/error.h"
#include "base/text.h"

namespace ringdp::comm {
namespace {

constexpr uint32_t kControlMagic = 0x72646332;  // "rdc2"

struct WireMessage {
  uint32_t magic;
  uint8_t kind, error;
  uint16_t text_bytes;
  int32_t culprit;
  int32_t origin;
  uint64_t seq;
  uint32_t text_sum;  // CRC-32C
  uint32_t sum;       // of the fields before it; checked before `text_bytes` is used
};
static_assert(sizeof(WireMessage) == 32);

uint32_t sum_of(const WireMessage& h) { return crc32c(0, &h, offsetof(WireMessage, sum)); }

bool valid(const WireMessage& h) {
  return h.magic == kControlMagic && h.sum == sum_of(h) && h.kind <= static_cast<uint8_t>(ControlKind::kGoodbye) &&
         h.error <= static_cast<uint8_t>(ErrorKind::kInternal) && h.text_bytes <= kMaxText;
}

[[noreturn]] void refuse() { throw Error(ErrorKind::kInternal, "bytes on a control socket are no control message"); }

constexpr int kTickMs = 100;
constexpr auto kHeartbeatEvery = std::chrono::milliseconds(250);

UniqueFd new_poll() {
  UniqueFd fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!fd) throw_errno("cannot watch peers (epoll_create1)");
  return fd;
}

void change(int poll, int operation, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(poll, operation, fd, &event) != 0) throw_errno("cannot watch a peer (epoll_ctl)");
}

bool is_readable(int fd) {
  pollfd polled{fd, POLLIN, 0};
  return ::poll(&polled, 1, 0) == 1;
}

template <class Items, class Test>
void drop(Items& items, const Test& test) {
  items.erase(std::remove_if(items.begin(), items.end(), test), items.end());
}

}  // namespace

std::string encode(const ControlMessage& m) {
  const std::string text = m.text.substr(0, kMaxText);
  WireMessage h{kControlMagic,
                static_cast<uint8_t>(m.kind),
                static_cast<uint8_t>(m.error),
                static_cast<uint16_t>(text.size()),
                m.culprit,
                m.origin,
                m.seq,
                crc32c(0, text.data(), text.size()),
                0};
  h.sum = sum_of(h);
  std::string bytes(reinterpret_cast<const char*>(&h), sizeof h);
  return bytes + text;
}

std::vector<ControlMessage> ControlParser::feed(const char* bytes, size_t size) {
  std::vector<ControlMessage> messages;
  pending_.append(bytes, size);
  size_t at = 0;
  while (pending_.size() - at >= sizeof(WireMessage)) {
    WireMessage h;
    std::memcpy(&h, pending_.data() + at, sizeof h);
    if (!valid(h)) refuse();
    if (pending_.size() - at < sizeof h + h.text_bytes) break;
    const std::string text = pending_.substr(at + sizeof h, h.text_bytes);
    if (h.text_sum != crc32c(0, text.data(), text.size())) refuse();
    messages.push_back({static_cast<ControlKind>(h.kind), static_cast<ErrorKind>(h.error), h.culprit, h.seq,
                        printable(text, kMaxText), h.origin});
    at += sizeof h + h.text_bytes;
  }
  pending_.erase(0, at);
  return messages;
}

void send_control(transport::SocketView socket, const ControlMessage& message) {
  // Heartbeats to a stopped peer must not fill the socket: a message cut in two would read as garbage later.
  constexpr int kMaxQueuedHeartbeats = 4096;
  int queued = 0;
  const bool may_wait = message.kind == ControlKind::kHeartbeat;
  if (may_wait && ::ioctl(socket.fd(), SIOCOUTQ, &queued) == 0 && queued > kMaxQueuedHeartbeats) return;
  const std::string bytes = encode(message);
  socket.post(bytes.data(), bytes.size());
}

Drained drain_control(transport::SocketView socket, ControlParser& parser, std::vector<ControlMessage>& messages) {
  char bytes[2048];
  for (;;) {
    const ssize_t n = socket.recv(bytes, sizeof bytes);
    if (n > 0) {
      for (ControlMessage& m : parser.feed(bytes, n)) messages.push_back(std::move(m));
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return Drained::kOpen;
    } else if (n < 0 && errno == EPROTO) {
      refuse();
    } else {
      const bool cut = n < 0 && (errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH);
      return cut ? Drained::kUnreachable : Drained::kClosed;
    }
  }
}

Watch::Watch(std::function<void()> tick) : tick_(std::move(tick)), poll_(new_poll()) {
  change(poll_.get(), EPOLL_CTL_ADD, wake_.fd());
  thread_ = std::thread([this] { loop(); });
}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.ring();
  thread_.join();
}

void Watch::add(std::shared_ptr<Watched> group, const std::vector<WatchedPeer>& peers) {
  const std::lock_guard lock(mutex_);
  try {
    for (const WatchedPeer& peer : peers) {
      entries_.push_back(std::make_shared<Entry>(Entry{group, peer, {}}));
      for (const int fd : {peer.control.fd(), peer.pidfd}) {
        if (fd < 0) continue;
        Entries& of_fd = by_fd_[fd];
        of_fd.push_back(entries_.back());
        if (of_fd.size() == 1) change(poll_.get(), EPOLL_CTL_ADD, fd);
      }
    }
  } catch (const Error&) {
    forget([&](const Entry& e) { return e.group == group; });
    throw;
  }
  groups_.push_back(std::move(group));
}

void Watch::remove(const Watched* group) {
  const std::lock_guard lock(mutex_);
  forget([&](const Entry& e) { return e.group.get() == group; });
  drop(groups_, [&](const auto& g) { return g.get() == group; });
}

// Must run before a descriptor is closed: the kernel would go on watching it while a forked child holds a copy.
void Watch::forget(const Test& which) {
  const auto test = [&](const auto& e) { return which(*e); };
  for (auto at = by_fd_.begin(); at != by_fd_.end();) {
    drop(at->second, test);
    if (at->second.empty()) ::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, at->first, nullptr);
    at = at->second.empty() ? by_fd_.erase(at) : std::next(at);
  }
  drop(entries_, test);
}

std::vector<Loss> Watch::losses() {
  std::vector<Loss> all;
  for (const auto& group : groups()) {
    for (Loss& loss : group->losses()) all.push_back(std::move(loss));
  }
  return all;
}

Watch::Entries Watch::snapshot() {
  const std::lock_guard lock(mutex_);
  return entries_;
}

std::vector<std::shared_ptr<Watched>> Watch::groups() {
  const std::lock_guard lock(mutex_);
  return groups_;
}

void Watch::loop() {
  auto next_heartbeat = Deadline::Clock::now();
  for (;;) {
    epoll_event events[64];
    const int ready = ::epoll_wait(poll_.get(), events, std::size(events), kTickMs);
    if (ready < 0 && errno != EINTR) fail(std::strerror(errno));
    for (int i = 0; i < ready; ++i) {
      if (events[i].data.fd == wake_.fd()) {
        wake_.drain();
      } else {
        look_at(events[i].data.fd);
      }
    }
    if (const auto now = Deadline::Clock::now(); now >= next_heartbeat) {
      next_heartbeat = now + kHeartbeatEvery;
      for (const auto& e : snapshot()) {
        if (e->peer.heartbeat) send_control(e->peer.control, ControlMessage{});
        // Bytes that arrived together with the last ones of the bootstrap.
        if (e->peer.control.has_buffered()) look(*e, false);
      }
    }
    tick_();
    const std::lock_guard lock(mutex_);
    if (stop_) return;
  }
}

// The group may be gone by now, and the number may belong to another descriptor.
void Watch::look_at(int fd) {
  Entries entries;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_fd_.find(fd);
    if (found != by_fd_.end()) entries = found->second;
  }
  for (const auto& e : entries) look(*e, fd == e->peer.pidfd && is_readable(fd));
}

void Watch::fail(const std::string& why) {
  for (const auto& group : groups()) group->watch_failed(why);
  std::this_thread::sleep_for(std::chrono::milliseconds(kTickMs));
}

void Watch::look(Entry& entry, bool process_gone) {
  // A peer's last message takes precedence over the state of its sockets.
  std::vector<ControlMessage> messages;
  Drained drained = Drained::kOpen;
  std::string how = process_gone ? kDied : "";
  try {
    drained = drain_control(entry.peer.control, entry.parser, messages);
  } catch (const Error&) {
    how = "sent bytes that are no control message";
  }
  if (how.empty() && drained == Drained::kClosed) {
    how = "closed its connection without a goodbye: it was killed, crashed, or its host went down";
  }
  if (how.empty() && drained == Drained::kUnreachable) {
    how = "has acknowledged nothing for RINGDP_UNREACHABLE_MS: its host or the network between is gone";
  }
  bool left = false;
  for (const ControlMessage& message : messages) {
    if (message.kind == ControlKind::kAbort) entry.group->peer_aborted(entry.peer.rank, message);
    if (message.kind == ControlKind::kGoodbye) {
      entry.group->peer_left(entry.peer.rank, message);
      left = true;
    }
  }
  if (!left && !how.empty()) entry.group->peer_lost(entry.peer.rank, how);
  if (!left && how.empty()) return;
  const std::lock_guard lock(mutex_);
  forget([&](const Entry& e) { return &e == &entry; });
}

}  // namespace ringdp::comm
