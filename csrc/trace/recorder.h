// The recorder of a process: its ring of events, and the groups that they are of. Any thread.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "trace/events.h"

namespace ringdp::trace {

struct GroupFacts {
  std::string name;
  int rank = 0;              // of this process in the group
  std::vector<int> members;  // of each rank of the group: its rank in the job
};

class Recorder {
 public:
  static constexpr size_t kMostClosed = 256;

  explicit Recorder(size_t capacity) : ring_(capacity) {}

  int open(GroupFacts facts);                // the number by which its events name the group
  void close(int number);                    // it has ended: its facts are kept until many others have, too
  std::map<int, GroupFacts> groups() const;  // by number
  int rank() const;                          // of this process in the job: as its first group says

  void note(Event event);
  const Ring& ring() const { return ring_; }

 private:
  Ring ring_;
  mutable std::mutex mutex_;  // guards the rest
  // In one piece: nodes that stay where tensors come and go would keep the freed memory in pieces.
  std::vector<std::pair<int, GroupFacts>> groups_;  // by number
  std::vector<int> closed_;                         // the oldest first
  int opened_ = 0, rank_ = 0;
};

// This process's, made at first use with as many events as RINGDP_TRACE_EVENTS says; InvalidArgument on a bad value.
// Never destroyed.
Recorder& recorder();

// The same text for as long as the process lives; for names of events. A handful of different ones.
const char* lasting(const std::string& text);

}  // namespace ringdp::trace
