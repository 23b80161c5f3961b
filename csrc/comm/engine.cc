#include "comm/engine.h"

#include <algorithm>
#include <atomic>

#include "base/threads.h"

namespace ringdp::comm {
namespace {

using Clock = Deadline::Clock;

// How often a sleeping driver checks deadlines, late peers and mismatching headers.
constexpr int kSleepMs = 50;

// Peers on cores of their own usually answer within this time.
constexpr std::chrono::microseconds kBriefWait{3};

bool has(const std::vector<int>& cores, int core) { return std::find(cores.begin(), cores.end(), core) != cores.end(); }

}  // namespace

Engine::Engine() : progress_([this] { progress_loop(); }) {}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  kicked_.notify_all();
  doorbell_.ring();
  progress_.join();
}

void Engine::add(std::shared_ptr<Drivable> group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(group));
  ++version_;
}

void Engine::remove(const Drivable* group) {
  const std::lock_guard lock(mutex_);
  groups_.erase(std::remove_if(groups_.begin(), groups_.end(), [&](const auto& g) { return g.get() == group; }),
                groups_.end());
  ++version_;
}

Engine::Groups Engine::snapshot() {
  const std::lock_guard lock(mutex_);
  return groups_;
}

bool Engine::any_active() {
  const Groups groups = snapshot();
  return std::any_of(groups.begin(), groups.end(), [](const auto& g) { return g->active(); });
}

void Engine::kick() {
  bool someone_drives = false;
  {
    const std::lock_guard lock(mutex_);
    kick_ = true;
    someone_drives = driving_;
  }
  kicked_.notify_one();
  if (someone_drives) doorbell_.ring();  // the driver may be asleep
}

void Engine::announce() {
  const std::lock_guard lock(mutex_);
  if (waiters_ > 0) changed_.notify_all();
}

bool Engine::wait(const std::function<bool()>& done, Deadline deadline) {
  std::unique_lock lock(mutex_);
  ++waiters_;
  while (!done() && !deadline.passed()) {
    if (driving_) {
      doorbell_.ring();
      changed_.wait_until(lock, deadline.next_look());
      continue;
    }
    driving_ = true;
    lock.unlock();
    const bool left_work = drive(done, deadline);
    lock.lock();
    driving_ = false;
    changed_.notify_all();
    kick_ |= left_work;
    if (kick_) kicked_.notify_one();
  }
  --waiters_;
  return done();
}

void Engine::end(Deadline deadline) {
  std::unique_lock lock(mutex_);
  ended_ = true;
  while (driving_ && !deadline.passed()) {
    doorbell_.ring();
    changed_.wait_until(lock, deadline.next_look());
  }
}

void Engine::progress_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    kicked_.wait(lock, [this] { return stop_ || (kick_ && !driving_ && !ended_); });
    if (stop_) return;
    kick_ = false;
    driving_ = true;
    lock.unlock();
    drive({}, Deadline::never());
    lock.lock();
    driving_ = false;
    changed_.notify_all();
  }
}

// Without `done`: until nothing is active. Returns whether work is left.
bool Engine::drive(const std::function<bool()>& done, Deadline deadline) {
  Groups groups;
  uint64_t seen = ~uint64_t{0};
  auto idle_since = Clock::now();
  bool has_left_core = false;
  for (;;) {
    if (const uint64_t version = version_.load(); version != seen) {
      groups = snapshot();
      seen = version;
    }
    bool moved = false, active = false;
    SpinPolicy policy;
    for (const auto& group : groups) {
      if (!group->active()) continue;
      moved |= group->advance();
      active |= group->active();
      policy.polls = std::max(policy.polls, group->spin_policy().polls);
      policy.yields |= group->spin_policy().yields;
    }
    if (done ? done() : !active) return active;
    const auto now = Clock::now();
    if (now >= deadline.at()) return active;
    if (moved) {
      idle_since = now;
      has_left_core = false;
      continue;
    }
    if (!has_left_core && now - idle_since >= std::min(policy.polls, kBriefWait)) {
      for (const auto& group : groups) {
        if (group->active()) group->leave_shared_core();
      }
      has_left_core = true;
    }
    if (now - idle_since < policy.polls) {
      if (policy.yields) std::this_thread::yield();
      continue;
    }
    sleep(groups, deadline);
    idle_since = Clock::now();
    has_left_core = false;
  }
}

void Engine::sleep(const Groups& groups, Deadline deadline) {
  std::vector<pollfd> polls{{doorbell_.fd(), POLLIN, 0}};
  Groups asleep;
  for (const auto& group : groups) {
    if (group->active()) asleep.push_back(group);
  }
  for (const auto& group : asleep) group->set_asleep(true, polls);
  // Look once more: a peer that moved before it saw this rank asleep has not rung.
  bool moved = false;
  for (const auto& group : asleep) moved |= group->advance();
  if (!moved) {
    ::poll(polls.data(), polls.size(), deadline.poll_ms(kSleepMs));
    if (polls[0].revents != 0) doorbell_.drain();
  }
  polls.clear();
  for (const auto& group : asleep) {
    group->set_asleep(false, polls);
    group->check_time();
  }
}

std::vector<int> free_cores(const std::vector<int>& usable, int here, const std::vector<int>& of_peers) {
  std::vector<int> cores;
  if (!has(of_peers, here)) return cores;
  for (const int core : usable) {
    if (core != here && !has(of_peers, core)) cores.push_back(core);
  }
  return cores;
}

void leave_shared_core(transport::Arena& arena) {
  arena.publish_core();
  const int here = current_core();
  std::vector<int> of_peers;
  for (int member = 0; member < arena.size(); ++member) {
    if (member != arena.index()) of_peers.push_back(arena.core(member));
  }
  if (here < 0 || !has(of_peers, here)) return;
  const std::vector<int> cores = free_cores(usable_cores(), here, of_peers);
  if (!cores.empty() && move_to(cores)) arena.publish_core();
}

}  // namespace ringdp::comm
