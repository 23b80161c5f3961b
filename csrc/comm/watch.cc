#include "comm/watch.h"

#include <algorithm>

#include "base/deadline.h"

namespace ringdp::comm {
namespace {

constexpr int kTickMs = 100;
constexpr auto kHeartbeatEvery = std::chrono::milliseconds(250);

}  // namespace

Watch::Watch(std::function<void()> tick) : tick_(std::move(tick)), thread_([this] { loop(); }) {}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.ring();
  thread_.join();
}

void Watch::add(std::shared_ptr<Watched> group, const std::vector<WatchedPeer>& peers) {
  {
    const std::lock_guard lock(mutex_);
    for (const WatchedPeer& peer : peers) entries_.push_back(std::make_shared<Entry>(Entry{group, peer, {}}));
    groups_.push_back(std::move(group));
  }
  wake_.ring();
}

void Watch::remove(const Watched* group) {
  {
    const std::lock_guard lock(mutex_);
    entries_.erase(std::remove_if(entries_.begin(), entries_.end(), [&](const auto& e) { return e->group.get() == group; }),
                   entries_.end());
    groups_.erase(std::remove_if(groups_.begin(), groups_.end(), [&](const auto& g) { return g.get() == group; }),
                  groups_.end());
  }
  wake_.ring();
}

std::vector<Loss> Watch::losses() {
  std::vector<std::shared_ptr<Watched>> groups;
  {
    const std::lock_guard lock(mutex_);
    groups = groups_;
  }
  std::vector<Loss> all;
  for (const auto& group : groups) {
    for (Loss& loss : group->losses()) all.push_back(std::move(loss));
  }
  return all;
}

void Watch::forget(const Entry* entry) {
  const std::lock_guard lock(mutex_);
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(), [&](const auto& e) { return e.get() == entry; }),
                 entries_.end());
}

Watch::Entries Watch::snapshot() {
  const std::lock_guard lock(mutex_);
  return stop_ ? Entries{} : entries_;
}

void Watch::loop() {
  auto next_heartbeat = Deadline::Clock::now();
  for (;;) {
    const Entries entries = snapshot();
    std::vector<pollfd> polls{{wake_.fd(), POLLIN, 0}};
    for (const auto& e : entries) {
      polls.push_back({e->peer.control_fd, POLLIN, 0});
      polls.push_back({e->peer.pidfd, POLLIN, 0});  // poll(2) skips -1
    }
    ::poll(polls.data(), polls.size(), kTickMs);
    if (polls[0].revents != 0) wake_.drain();
    for (size_t i = 0; i < entries.size(); ++i) {
      const bool gone = polls[2 + 2 * i].revents != 0;
      if (gone || polls[1 + 2 * i].revents != 0) look(*entries[i], gone);
    }
    if (const auto now = Deadline::Clock::now(); now >= next_heartbeat) {
      next_heartbeat = now + kHeartbeatEvery;
      for (const auto& e : entries) {
        if (e->peer.heartbeat) send_control(e->peer.control_fd, ControlMessage{});
      }
    }
    tick_();
    const std::lock_guard lock(mutex_);
    if (stop_) return;
  }
}

void Watch::look(Entry& entry, bool process_gone) {
  // What the peer said last outranks how its sockets look now.
  std::vector<ControlMessage> messages;
  Drained drained = Drained::kOpen;
  std::string how = process_gone ? kDied : "";
  try {
    drained = drain_control(entry.peer.control_fd, entry.parser, messages);
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
      entry.group->peer_left(entry.peer.rank, message.seq);
      left = true;
    }
  }
  if (!left && !how.empty()) entry.group->peer_lost(entry.peer.rank, how);
  if (left || !how.empty()) forget(&entry);
}

}  // namespace ringdp::comm
