#include "trace/recorder.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/settings.h"

namespace ringdp::trace {

int Recorder::open(GroupFacts facts) {
  const std::lock_guard lock(mutex_);
  for (int& member : facts.members) {
    if (static_cast<size_t>(member) < names_.size()) member = names_[member];
  }
  facts.name += world_;
  if (opened_ == 0) rank_ = facts.members.at(facts.rank);
  groups_.emplace_back(opened_, std::move(facts));
  return opened_++;
}

void Recorder::name_members(int own, std::vector<int> members, std::string world) {
  const std::lock_guard lock(mutex_);
  rank_ = own;
  names_ = std::move(members);
  world_ = std::move(world);
  for (auto& [number, facts] : groups_) {
    if (facts.members.size() == 1) facts.members[0] = own;
  }
}

void Recorder::close(int number) {
  const std::lock_guard lock(mutex_);
  closed_.push_back(number);
  if (closed_.size() <= kMostClosed) return;
  const auto is_older = [](const auto& group, int number) { return group.first < number; };
  groups_.erase(std::lower_bound(groups_.begin(), groups_.end(), closed_.front(), is_older));
  closed_.erase(closed_.begin());
}

std::map<int, GroupFacts> Recorder::groups() const {
  const std::lock_guard lock(mutex_);
  return {groups_.begin(), groups_.end()};
}

int Recorder::rank() const {
  const std::lock_guard lock(mutex_);
  return rank_;
}

void Recorder::note(Event event) {
  static thread_local const auto id = static_cast<int32_t>(::syscall(SYS_gettid));
  event.thread = id;
  if (event.time_ns == 0) event.time_ns = now_ns();
  ring_.write(event);
}

Recorder& recorder() {
  static Recorder* const instance = new Recorder(static_cast<size_t>(trace_events_from_environment()));
  return *instance;
}

const char* interned(const std::string& text) {
  static ForkMutex* const mutex = new ForkMutex;
  static std::set<std::string>* const known = new std::set<std::string>;
  const std::lock_guard lock(*mutex);
  return known->insert(text).first->c_str();
}

}  // namespace ringdp::trace
