// The recorder of a process: its ring of events, and the groups that they are of. Any thread.
#pragma once
#include <mutex>
#include <string>
#include <vector>

#include "trace/clock.h"
#include "trace/ring.h"

namespace ringdp::trace {

struct GroupFacts {
  std::string name;
  int rank = 0;              // of this process in the group
  std::vector<int> members;  // of each rank of the group: its rank in the job
};

class Recorder {
 public:
  explicit Recorder(size_t capacity) : ring_(capacity) {}

  int open(GroupFacts facts);  // the number by which its events name the group
  std::vector<GroupFacts> groups() const;

  void note(Event event);
  const Ring& ring() const { return ring_; }

 private:
  Ring ring_;
  mutable std::mutex mutex_;  // guards groups_
  std::vector<GroupFacts> groups_;
};

// This process's, made at first use with as many events as RINGDP_TRACE_EVENTS says; InvalidArgument on a bad value.
// Never destroyed.
Recorder& recorder();

// The same text for as long as the process lives; for names of events. A handful of different ones.
const char* lasting(const std::string& text);

}  // namespace ringdp::trace
