#include "comm/watch.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/deadline.h"
#include "base/error.h"

namespace ringdp::comm {
namespace {

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

// Before a descriptor is closed: while a forked child holds a copy the kernel would look at it for good.
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
        // What came right behind the last bytes of the rendezvous.
        if (e->peer.control.is_ahead()) look(*e, false);
      }
    }
    tick_();
    const std::lock_guard lock(mutex_);
    if (stop_) return;
  }
}

// Its group may be gone by now, and the number another's.
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
  for (const auto& group : groups()) group->unwatched(why);
  std::this_thread::sleep_for(std::chrono::milliseconds(kTickMs));
}

void Watch::look(Entry& entry, bool process_gone) {
  // What the peer said last outranks how its sockets look now.
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
