#include "trace/recorder.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <set>
#include <utility>

#include "base/env.h"

namespace ringdp::trace {

int Recorder::open(GroupFacts facts) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(facts));
  return static_cast<int>(groups_.size()) - 1;
}

std::vector<GroupFacts> Recorder::groups() const {
  const std::lock_guard lock(mutex_);
  return groups_;
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

const char* lasting(const std::string& text) {
  static std::mutex* const mutex = new std::mutex;
  static std::set<std::string>* const known = new std::set<std::string>;
  const std::lock_guard lock(*mutex);
  return known->insert(text).first->c_str();
}

}  // namespace ringdp::trace
