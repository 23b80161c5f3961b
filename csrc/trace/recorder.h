// The recorder of a process: its ring of events, and the groups to which they belong. Any thread.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/fork_mutex.h"
#include "trace/events.h"

namespace ringdp::trace {

struct GroupFacts {
  std::string name;
  int rank = 0;              // of this process in the group
  std::vector<int> members;  // global rank of each group rank
};

class Recorder {
 public:
  static constexpr size_t kMostClosed = 256;

  explicit Recorder(size_t capacity) : ring_(capacity) {}

  int open(GroupFacts facts);  // returns the number for Event::group
  // Elastic jobs, whose ranks change: groups opened from now on have these members in the place of global ranks, and
  // names that end with `world`; this process is `own`, also in groups of itself alone that it has opened before.
  void name_members(int own, std::vector<int> members, std::string world);
  void close(int number);                    // the group has ended; it is dropped after kMostClosed others have
  std::map<int, GroupFacts> groups() const;  // by number
  int rank() const;                          // the global rank of this process, from its first group

  void note(Event event);
  const Ring& ring() const { return ring_; }

 private:
  Ring ring_;
  mutable ForkMutex mutex_;  // guards the rest
  // Not a map: its long-lived nodes among freed tensors would fragment the heap.
  std::vector<std::pair<int, GroupFacts>> groups_;  // by number
  std::vector<int> closed_;                         // oldest first
  std::vector<int> names_;                          // by global rank, see name_members(); empty: themselves
  std::string world_;
  int opened_ = 0, rank_ = 0;
};

// This process's, made at first use with as many events as RINGDP_TRACE_EVENTS says; InvalidArgument on a bad value.
// Never destroyed.
Recorder& recorder();

// Returns a copy of the text that lives as long as the process, the same for equal texts; for Event::name. Never freed,
// so only for few different texts.
const char* interned(const std::string& text);

}  // namespace ringdp::trace
